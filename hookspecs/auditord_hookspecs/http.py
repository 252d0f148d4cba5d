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
"""The statuses of a server that is unavailable or overloaded at the moment."""

_SHOWN: Final = 300

Parameters: TypeAlias = Sequence[tuple[str, str]]


class TlsPaths(Protocol):
    """The files of a TLS client: :class:`auditord_hookspecs.sources.TlsFiles`, or ``auditord.client.Tls``."""

    @property
    def ca(self) -> Path | None:
        """PEM file of the CAs that may sign the server's certificate; None: the system's CAs."""
        ...

    @property
    def certificate(self) -> Path | None:
        """PEM file of our certificate with its chain, for a server that requests one."""
        ...

    @property
    def key(self) -> Path | None:
        """PEM file of the certificate's private key; None: the key is in the certificate's file."""
        ...


def ignore_attempt(status: int | None) -> None:
    """Ignore the status of an attempt; the default of ``HttpOptions.on_attempt``."""
    del status


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """The options of a client.

    Args:
        tls: the CAs of servers, and our client certificate.
        verify: False accepts any certificate; for tests only.
        proxy: the URL of a proxy; None: the proxy of the environment (``https_proxy``, ``no_proxy`` and so on; never
            for a loopback address).
        headers: sent with every request. ``User-Agent`` is ``auditord/<version>`` unless the headers set it.
        timeout: the time limit of one attempt, from connecting to the last byte of the answer.
        silence: the time limit without progress, while connecting or waiting for the next bytes; None: ``timeout``.
        connections: the maximum number of open connections.
        max_answer: the maximum size of a complete answer in bytes; a larger answer is refused.
        attempts: the maximum number of attempts.
        retry_for: the time after the first attempt in which further attempts may start.
        waits: seconds before each further attempt; None: they grow from 0.5 s to 30 s, with jitter. The ``Retry-After``
            of an answer takes precedence if it ends within ``retry_for``.
        retried: the statuses after which an idempotent request is retried.
        on_attempt: called with the status of each attempt, or None if there was no answer; for metrics.
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
        request: the method and URL, for messages.
        status: the HTTP status.
        headers: the headers; names ignore case.
        body: the complete body.
        links: the URLs of the header ``Link`` by ``rel``, such as ``next``.
        attempts: the number of attempts.
    """

    request: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    links: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    attempts: int = 1

    @property
    def ok(self) -> bool:
        """True if the status is 2xx."""
        return 200 <= self.status < 300  # noqa: PLR2004 the classes of HTTP

    @property
    def text(self) -> str:
        """The beginning of the body, for messages."""
        return self.body[:_SHOWN].decode(errors="replace").strip()


class HttpError(AuditordError):
    """Base class of the errors of outgoing HTTP; the text names the request.

    Args:
        text: the request and the failure.
        attempts: the number of attempts.

    Remedy:
        see the subclass that was raised.
    """

    def __init__(self, text: str, attempts: int = 1) -> None:
        super().__init__(text)
        self.attempts = attempts


class NoHttpAnswer(HttpError):
    """No complete answer arrived: the connection was refused, reset or cut, or timed out.

    An error status counts as a complete answer, even if its text is truncated.

    Args:
        text: the request and the failure.
        attempts: the number of attempts.
        sent: False if the server cannot have seen the request.

    Remedy:
        check the network and the proxy. The next run tries again.
    """

    def __init__(self, text: str, attempts: int = 1, *, sent: bool) -> None:
        super().__init__(text, attempts)
        self.sent = sent


class CertificateUntrusted(NoHttpAnswer):
    """The server's certificate is not trusted. Repeating the request would not help.

    Remedy:
        name the server's CA in the option for it (ca_file, or the section's own name for it).
    """


class InvalidHttpAnswer(HttpError):
    """The URL cannot be requested, the server does not speak HTTP, or the answer is larger than allowed.

    Remedy:
        check the URL, and which server listens there.
    """


class HttpStatusError(HttpError):
    """A stream was requested, but the status of the answer is not 2xx.

    Args:
        answer: the complete answer.

    Remedy:
        read the body, which has the server's explanation.
    """

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(f"{answer.request} was answered {answer.status}: {answer.text}".rstrip(": "), answer.attempts)
        self.answer = answer


class HttpStream(Protocol):
    """A 2xx answer whose body is still arriving."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield chunks of the body; raises NoHttpAnswer if it is truncated."""
        ...


class HttpClient(Protocol):
    """Makes requests. Redirects are returned, not followed, since a POST would become a GET."""

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
            method: the HTTP method.
            url: percent-encoded; it is sent unchanged.
            params: parameters to add to the URL's query; a name may occur several times.
            headers: headers of this request, in addition to those of the options.
            body: the body; JSON, unless the headers set another ``Content-Type``.
            form: form fields to send instead of a body.
            idempotent: True if the request can be repeated safely; None: by method (GET, HEAD, OPTIONS, PUT, DELETE).
                Other requests are repeated only if the server cannot have seen them.
            retry_for: overrides the limit of the options.

        Raises:
            HttpError: no complete answer arrived. A status is no error, not even after the last attempt: check it.
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
        """Make a request whose answer may be larger than memory. It is retried only until an answer begins.

        Raises:
            HttpStatusError: the status of the answer is not 2xx.
            HttpError: no answer arrived.
        """
        ...
