"""Where a server is, how it is trusted, and who we are; requests as values, the same for both clients."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from auditord.client.errors import ClientError

USER_AGENT: Final = "auditord-client"
TIMEOUT_SECONDS: Final = 30.0
RETRY_WAITS: Final = (0.2, 1.0, 3.0)


@dataclass(frozen=True, slots=True)
class Tls:
    """How an ``https`` server is trusted, and what we show it.

    Args:
        ca: PEM file of the authorities that may vouch for the server; None: those of the system.
        certificate: PEM file of our own certificate (with its chain), for a server that asks for one.
        key: PEM file of its private key; None: it is in the certificate's file.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """What a connection is made with; the files are read now.

        Raises:
            ClientError: a file cannot be read or used.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(file) for file in (self.ca, self.certificate, self.key) if file)
            raise ClientError(f"cannot use the TLS files {files}: {error}") from error
        return context


def _no_password() -> str:
    raise ssl.SSLError("the private key is encrypted: a daemon has nobody to ask for its passphrase")


@dataclass(frozen=True, slots=True)
class Server:
    """A server and how to talk to it.

    Args:
        url: ``http://host:port`` or ``https://…``; a path in front of the routes may follow.
        tls: for ``https``.
        token: sent as ``Authorization: Bearer …``.
        timeout: seconds without progress (connecting, sending, waiting for the next bytes) after which it is a fault;
            an answer that keeps coming may take as long as it likes.
        retry_waits: seconds before each further attempt at what may safely be repeated; empty: none.
    """

    url: str
    tls: Tls = field(default_factory=Tls)
    token: str | None = field(default=None, repr=False)
    timeout: float = TIMEOUT_SECONDS
    retry_waits: tuple[float, ...] = RETRY_WAITS

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ClientError(f"{self.url!r} is no URL of a server: write http://host:port or https://host:port")
        if parts.username is not None:
            raise ClientError("a URL with a user name or password is not supported: give a token")
        object.__setattr__(self, "url", self.url.rstrip("/"))

    @property
    def headers(self) -> Mapping[str, str]:
        """What every request says."""
        authorization = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return {"User-Agent": USER_AGENT, "Accept": "*/*", **authorization}


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Args:
        method: of HTTP.
        target: path and query behind the server's URL, percent-encoded.
        body: JSON, or None.
        repeatable: whether a second time does no harm, and looks like the first: not so for inserts, whose second
            time is answered ``RECORD_EXISTS``.
    """

    method: str
    target: str
    body: bytes | None = None
    repeatable: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer.

    Args:
        request: method and URL, for messages.
        status: of HTTP.
        body: all of it.
    """

    request: str
    status: int
    body: bytes
