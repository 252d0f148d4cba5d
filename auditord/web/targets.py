"""The target of a request, as the client wrote it."""

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes


@dataclass(frozen=True, slots=True)
class Target:
    """A path and a query string, both still percent-encoded.

    Args:
        path: begins with a slash, without doubled or trailing ones (a base URL that ends in one makes ``//record``).
        query: what stands behind the first question mark.
    """

    path: str
    query: str

    @property
    def last_segment(self) -> str:
        """What stands behind the last slash, percent-decoded exactly once; ``+`` is a plus sign.

        Raises:
            UnicodeDecodeError: it is not UTF-8.
        """
        encoded = self.path.rpartition("/")[2].encode("utf-8", "surrogateescape")
        return unquote_to_bytes(encoded).decode()


def read_target(raw: str) -> Target:
    """Split the request target of a request line, in origin form or (as sent to proxies) absolute form."""
    path, _, query = raw.partition("?")
    if not path.startswith("/"):
        path = "/" + path.partition("://")[2].partition("/")[2]
    return Target("/" + "/".join(filter(None, path.split("/"))), query)
