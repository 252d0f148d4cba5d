"""Outgoing HTTP of an instance: the client that ``context.http`` opens, its options, answers and errors."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import msgspec

from auditord_hookspecs.errors import AuditordError
from auditord_hookspecs.sources import TlsFiles

RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})
"""The answers that say that a server is not there, or has too much to do, at the moment."""

_SHOWN: Final = 300

Parameters: TypeAlias = Sequence[tuple[str, str]]


class TlsPaths(Protocol):
    """The files of a TLS client: :class:`auditord_hookspecs.sources.TlsFiles`, or ``auditord.client.Tls``."""

    @property
    def ca(self) -> Path | None:
        """PEM file of the authorities that may vouch for the server; None: those of the system."""
        ...

    @property
    def certificate(self) -> Path | None:
        """PEM file of our own certificate with its chain, for a server that asks for one."""
        ...

    @property
    def key(self) -> Path | None:
        """PEM file of its private key; None: it is in the certificate's file."""
        ...


def ignore_attempt(status: int | None) -> None:
    """Do nothing with the status of an attempt."""
    del status


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """The options of a client.

    Args:
        tls: the CAs of servers, and our client certificate.
        verify: False accepts any certificate; for tests only.
        proxy: the URL of a proxy; None: the proxy of the environment (``https_proxy``, ``no_proxy`` and so on; never
            for a loopback address).
        headers: sent with every request; ``User-Agent`` is ``auditord/<version>`` unless it is among them.
        timeout: the longest time of one attempt at a whole answer, from connecting to its last byte.
        silence: the longest time without progress: connecting, or waiting for the next bytes; None: ``timeout``.
        connections: the maximum of open connections.
        max_answer: a larger complete answer (in bytes) is refused.
        attempts: the maximum number of attempts.
        retry_for: no attempt starts later than this after the first one.
        waits: seconds before each further attempt; None: they grow from 0.5 s to 30 s, with jitter. ``Retry-After`` of
            an answer takes precedence if it ends within ``retry_for``.
        retried: the statuses after which an idempotent request is retried.
        on_attempt: called with the status of each attempt, None if there was no answer; for metrics.
    """

    tls: TlsPaths = field(default_factory=TlsFiles)
    verify: bool = True
    proxy: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timeout: timedelta = timedelta(seconds=30)
    silence: timedelta | None = None
    connections: int = 8
    max_answer: int = 16 * 1024 * 1024
    attempts: int = 4
    retry_for: timedelta = timedelta(minutes=1)
    waits: Sequence[float] | None = None
    retried: Collection[int] = RETRIED_STATUSES
    on_attempt: Callable[[int | None], None] = ignore_attempt


class HttpAnswer(msgspec.Struct, frozen=True):
    """A complete answer, with any status.

    Args:
        request: method and URL, for messages.
        status: the HTTP status.
        headers: the headers; names ignore case.
        body: the complete body.
        links: the URLs of the header ``Link`` by ``rel``, such as ``next``.
        attempts: how often the request was made.
    """

    request: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    links: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    attempts: int = 1

    @property
    def ok(self) -> bool:
        """True for 2xx."""
        return 200 <= self.status < 300  # noqa: PLR2004 the classes of HTTP

    @property
    def text(self) -> str:
        """The beginning of the body, for messages."""
        return self.body[:_SHOWN].decode(errors="replace").strip()


class HttpError(AuditordError):
    """Base class of the errors of outgoing HTTP; the text names the request.

    Args:
        text: the request and what happened.
        attempts: how often it was made.

    Remedy:
        see the subclass that was raised.
    """

    def __init__(self, text: str, attempts: int = 1) -> None:
        super().__init__(text)
        self.attempts = attempts


class NoHttpAnswer(HttpError):
    """No complete answer arrived: connection refused, reset, cut, or timed out.

    Args:
        text: the request and what happened.
        attempts: how often it was made.
        sent: False if the server cannot have seen the request.

    Remedy:
        see network and proxy; the next run tries again.
    """

    def __init__(self, text: str, attempts: int = 1, *, sent: bool) -> None:
        super().__init__(text, attempts)
        self.sent = sent


class CertificateUntrusted(NoHttpAnswer):
    """The server's certificate is not trusted; making the request again would not help.

    Remedy:
        name the authority of the server in the option for it (ca_file, or what the section calls it).
    """


class InvalidHttpAnswer(HttpError):
    """The URL cannot be asked, what answers does not speak HTTP, or the answer has more bytes than are allowed.

    Remedy:
        see the URL, and what listens there.
    """


class HttpStatusError(HttpError):
    """A stream was asked for, and the answer is none of 2xx.

    Args:
        answer: the whole answer.

    Remedy:
        read the body, which is in the words of the server.
    """

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(f"{answer.request} was answered {answer.status}: {answer.text}".rstrip(": "), answer.attempts)
        self.answer = answer


class HttpStream(Protocol):
    """An answer that has begun, 2xx."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield chunks of the body; raises NoHttpAnswer if it is truncated."""
        ...


class HttpClient(Protocol):
    """Makes requests. Redirects are not followed: a POST would become a GET; they are answers like others."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        params: Parameters = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        form: Mapping[str, str] | None = None,
        idempotent: bool | None = None,
        retry_for: timedelta | None = None,
    ) -> HttpAnswer:
        """Make a request, with retries, and return the answer.

        Args:
            method: of HTTP.
            url: percent-encoded; it is sent unchanged.
            params: added to its query; a name may be there several times.
            headers: of this request, besides those of the options.
            body: JSON, unless the headers say another ``Content-Type``.
            form: fields to send instead of a body.
            idempotent: True if making it twice does no harm; None: by the method (GET, HEAD, OPTIONS, PUT, DELETE).
                Others are made again only if the server cannot have seen them.
            retry_for: instead of that of the options.

        Raises:
            HttpError: no complete answer came. A status is no error, not even after the last attempt: check it.
        """
        ...

    def stream(
        self,
        method: str,
        url: str,
        *,
        params: Parameters = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> AbstractAsyncContextManager[HttpStream]:
        """Make a request whose answer may be larger than memory; only until the answer begins it is made again.

        Raises:
            HttpStatusError: the answer is none of 2xx.
            HttpError: there is no answer.
        """
        ...
