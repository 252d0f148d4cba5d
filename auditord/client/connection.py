"""A server's address, its TLS files, and the options of a client that talks to it."""

import ssl
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from auditord.client.errors import ClientError
from auditord_hookspecs.http import HttpOptions, TlsPaths

TIMEOUT_SECONDS: Final = 30.0
RETRY_WAITS: Final = (0.2, 1.0, 3.0)
MAX_OBJECT_BYTES: Final = 64 << 20
"""More than the largest body that auditord takes: larger is no record."""

_PASSING: Final = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
)
_LONGEST_EXCHANGE: Final = 4
"""Time limits that a whole answer may take; sending a body has no limit of its own in aiohttp."""


class Tls(msgspec.Struct, frozen=True):
    """The TLS files of a client.

    Args:
        ca: PEM file, or folder with hashed names, of the authorities that may vouch for the server; None: the system's.
        certificate: PEM file of our own certificate (with its chain), for a server that asks for one.
        key: PEM file of its private key; None: it is in the certificate's file.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


def tls_context(files: TlsPaths) -> ssl.SSLContext:
    """Return the settings of TLS connections; the files are read now.

    Raises:
        ClientError: a file cannot be read or used.
    """
    try:
        folder = files.ca is not None and Path(files.ca).is_dir()
        context = ssl.create_default_context(cafile=None if folder else files.ca, capath=files.ca if folder else None)
        if files.certificate is not None:
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(str(file) for file in (files.ca, files.certificate, files.key) if file)
        raise ClientError(f"cannot use the TLS files {named}: {error}") from error
    return context


def _no_password() -> str:
    raise ssl.SSLError("the private key is encrypted: a daemon cannot ask for its passphrase: use a key without one")


@dataclass(frozen=True, slots=True)
class Server:
    """A server, and the options of a client that talks to it.

    Args:
        url: ``http://host:port`` or ``https://…``; a path in front of the routes may follow.
        tls: for ``https``.
        token: sent as ``Authorization: Bearer …``.
        timeout: seconds without progress (connecting, sending, waiting for the next bytes) after which it is a fault;
            an answer that keeps coming may take as long as it likes.
        retry_waits: seconds before each further attempt at what may safely be repeated; empty: none.
    """

    url: str
    tls: TlsPaths = field(default_factory=Tls)
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
    def options(self) -> HttpOptions:
        """The options of the HTTP client."""
        silence = timedelta(seconds=self.timeout)
        return HttpOptions(
            tls=self.tls,
            headers={} if self.token is None else {"Authorization": f"Bearer {self.token}"},
            timeout=_LONGEST_EXCHANGE * silence,
            silence=silence,
            connections=100,
            max_answer=MAX_OBJECT_BYTES,
            attempts=len(self.retry_waits) + 1,
            retry_for=timedelta.max,
            waits=self.retry_waits,
            retried=_PASSING,
        )


class BaseClient:
    """The part that all clients have: the server.

    Args:
        url: ``http://host:port`` or ``https://host:port``.
        tls: how the server is trusted and what we show it.
        token: sent as ``Authorization: Bearer …``.
        timeout: seconds without progress after which a request has failed.
        retry_waits: seconds before each further attempt.

    Raises:
        ClientError: it is no URL, or a file of ``tls`` cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: TlsPaths | None = None,
        token: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        retry_waits: tuple[float, ...] = RETRY_WAITS,
    ) -> None:
        self._server = Server(url, tls or Tls(), token, timeout, retry_waits)
        if self._server.url.startswith("https:"):
            tls_context(self._server.tls)  # or a missing file would show at the first call
