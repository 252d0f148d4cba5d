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
    def segments(self) -> list[str]:
        """What stands between the slashes, still percent-encoded."""
        return self.path.split("/")[1:]

    @property
    def last_segment(self) -> str:
        """What stands behind the last slash, decoded; see :meth:`segment`."""
        return self.segment(-1)

    def segment(self, position: int) -> str:
        """What stands between two slashes, percent-decoded exactly once; ``+`` is a plus sign.

        Raises:
            UnicodeDecodeError: it is not UTF-8.
        """
        return unquote_to_bytes(self.segments[position].encode("utf-8", "surrogateescape")).decode()


def read_target(raw: str) -> Target:
    """Split the request target of a request line, in origin form or (as sent to proxies) absolute form."""
    path, _, query = raw.partition("?")
    if not path.startswith("/"):
        path = "/" + path.partition("://")[2].partition("/")[2]
    return Target("/" + "/".join(filter(None, path.split("/"))), query)
