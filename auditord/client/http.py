"""The HTTP client behind ``context.http`` and :class:`auditord.client.AsyncClient`, built on aiohttp and stamina."""

import asyncio
import io
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar, cast
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
import stamina
from yarl import URL

from auditord import __version__
from auditord.client.exchange import tls_context
from auditord_hookspecs import http

T = TypeVar("T")

USER_AGENT: Final = f"auditord/{__version__}"

_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_LARGE_BODY: Final = 64 * 1024
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 30.0
_KEEP_ALIVE: Final = 2.0
"""Seconds for which idle connections are kept. AUDITOR closes them after five, and a POST on a connection that is being
closed cannot be repeated."""

_LOOPBACK: Final = ("127.", "localhost", "::1")


@asynccontextmanager
async def open_client(options: http.HttpOptions) -> AsyncGenerator["AiohttpClient", None]:
    """Open a client; nothing is sent before the first request.

    Raises:
        ClientError: the TLS files cannot be used.
    """
    timeout = (options.silence or options.timeout).total_seconds()
    headers = {"User-Agent": USER_AGENT, "Accept": "*/*", "Accept-Encoding": "identity", **options.headers}
    trust: ssl.SSLContext | bool = options.verify
    if options.tls.ca is not None or options.tls.certificate is not None:
        trust = tls_context(options.tls)
        if not options.verify:
            trust.check_hostname = False
            trust.verify_mode = ssl.CERT_NONE
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trust, limit=options.connections, keepalive_timeout=_KEEP_ALIVE),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout),
        headers=headers,
        max_field_size=64 * 1024,
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        yield AiohttpClient(session, options)


class _Call(msgspec.Struct, frozen=True):
    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes | None
    form: Mapping[str, str] | None
    idempotent: bool
    started: float = msgspec.field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"{self.method} {self.url}"

    @property
    def data(self) -> Any:  # Any: aiohttp's
        if self.body is None or len(self.body) <= _LARGE_BODY:
            return self.form if self.body is None else self.body
        return io.BytesIO(self.body)  # aiohttp writes large bytes at once, which blocks the event loop


class AiohttpClient:
    """Implements :class:`auditord_hookspecs.HttpClient`."""

    def __init__(self, session: aiohttp.ClientSession, options: http.HttpOptions) -> None:
        self._session = session
        self._options = options

    async def request(
        self,
        method: str,
        url: str,
        *,
        params: http.Parameters = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        form: Mapping[str, str] | None = None,
        idempotent: bool | None = None,
        retry_for: timedelta | None = None,
    ) -> http.HttpAnswer:
        """Make a request, retry it after temporary failures, and return the last answer."""
        repeatable = method in _IDEMPOTENT if idempotent is None else idempotent
        call = _Call(method, _url(url, params), _headers(headers, body), body, form, repeatable)

        async def attempt(number: int) -> http.HttpAnswer:
            async with AsyncExitStack() as stack, asyncio.timeout(self._options.timeout.total_seconds()):
                answer = await self._whole(call, await self._begin(stack, call), number)
            if answer.status in self._options.retried:
                raise http.HttpStatusError(answer)
            return answer

        try:
            return await self._retry(call, attempt, retry_for)
        except http.HttpStatusError as error:
            return error.answer

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        params: http.Parameters = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> AsyncGenerator["AiohttpStream", None]:
        """Make a request and yield its answer as a stream, which may be larger than memory."""
        call = _Call(method, _url(url, params), _headers(headers, body), body, None, method in _IDEMPOTENT)
        async with AsyncExitStack() as stack:

            async def attempt(number: int) -> aiohttp.ClientResponse:
                response = await self._begin(stack, call)
                if not response.ok or response.status >= 300:  # noqa: PLR2004 redirects are not followed
                    raise http.HttpStatusError(await self._whole(call, response, number))
                self._options.on_attempt(response.status)
                return response

            yield AiohttpStream(await self._retry(call, attempt), str(call))

    async def _begin(self, stack: AsyncExitStack, call: _Call) -> aiohttp.ClientResponse:
        proxy, host = self._options.proxy, call.url.host or ""
        # The environment's proxy. Unlike aiohttp's ``trust_env``, this uses no passwords of netrc.
        if not (proxy or host.startswith(_LOOPBACK) or proxy_bypass(f"{host}:{call.url.port}")):
            proxy = getproxies().get(call.url.scheme)
        return await stack.enter_async_context(
            self._session.request(
                call.method,
                call.url,
                data=call.data,
                headers=call.headers,
                allow_redirects=False,
                proxy=proxy,
            )
        )

    async def _whole(self, call: _Call, response: aiohttp.ClientResponse, number: int) -> http.HttpAnswer:
        body = bytearray()
        try:
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > self._options.max_answer:
                    raise http.InvalidHttpAnswer(f"{call}: the answer has more than {self._options.max_answer} bytes")
        except aiohttp.ClientPayloadError:
            if response.ok:
                raise
            # auditord truncates refusals of POSTs. Their status says enough.
        self._options.on_attempt(response.status)
        links = {str(relation): str(link["url"]) for relation, link in response.links.items() if "url" in link}
        return http.HttpAnswer(str(call), response.status, response.headers, bytes(body), links, number)

    async def _retry(
        self, call: _Call, attempt: Callable[[int], Awaitable[T]], retry_for: timedelta | None = None
    ) -> T:
        budget = (self._options.retry_for if retry_for is None else retry_for).total_seconds()
        async for each in stamina.retry_context(
            on=lambda error: self._wait(call, error, budget),
            attempts=self._options.attempts,
            timeout=None,
            wait_initial=_FIRST_WAIT,
            wait_max=_LONGEST_WAIT,
            wait_jitter=_FIRST_WAIT,
        ):
            with each:
                try:
                    return await attempt(each.num)
                except http.HttpError as error:
                    error.attempts = each.num
                    raise
                except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                    self._options.on_attempt(None)
                    raise _translate(str(call), error, each.num) from error
        raise AssertionError("stamina raises the last error")

    def _wait(self, call: _Call, error: Exception, budget: float) -> bool | float:
        """Return the seconds before the next attempt, True for the wait that stamina chooses, or False to give up."""
        match error:
            case http.CertificateUntrusted():
                return False
            case http.NoHttpAnswer():
                may_pass = call.idempotent or not error.sent
            case http.HttpStatusError():
                may_pass = call.idempotent and error.answer.status in self._options.retried
            case _:
                return False
        if not may_pass:
            return False
        wait = retry_after(error.answer.headers) if isinstance(error, http.HttpStatusError) else None
        if wait is None and self._options.waits:
            wait = self._options.waits[min(error.attempts, len(self._options.waits)) - 1]
        growing = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (error.attempts - 1))
        in_time = time.monotonic() - call.started + (growing if wait is None else wait) <= budget
        return in_time if wait is None or not in_time else wait


class AiohttpStream(msgspec.Struct, frozen=True):
    """Implements :class:`auditord_hookspecs.HttpStream`."""

    response: aiohttp.ClientResponse
    request: str

    @property
    def headers(self) -> Mapping[str, str]:
        """The answer's headers."""
        return self.response.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield chunks of the body."""
        try:
            async for piece in self.response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _translate(self.request, error, 1) from error


def _url(url: str, params: http.Parameters) -> URL:
    encoded = URL(url, encoded=True)  # otherwise yarl would rewrite brackets and %2F
    return encoded.extend_query(list(params)) if params else encoded


def _headers(headers: Mapping[str, str] | None, body: bytes | None) -> Mapping[str, str]:
    return {**({} if body is None else {"Content-Type": "application/json"}), **(headers or {})}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a ``Retry-After`` header: a number, or a time by the server's clock."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("Date", ""))
    except (TypeError, ValueError):  # a header is missing or has no zone
        return None
    return max(0.0, wait.total_seconds())


def _translate(request: str, error: Exception, made: int) -> http.HttpError:
    text = f"{request}: {_words(error)}"
    match error:
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            return http.CertificateUntrusted(f"{request}: the certificate is not trusted: {error}", made, sent=False)
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return http.NoHttpAnswer(f"{request}: cannot connect: {_words(error)}", made, sent=False)
        case aiohttp.ClientResponseError():
            return http.InvalidHttpAnswer(f"{request}: the server does not speak HTTP: {error.message}", made)
        case aiohttp.InvalidURL():
            return http.InvalidHttpAnswer(f"{request}: the address is not valid: {_words(error)}", made)
        case aiohttp.ClientError() | TimeoutError() | OSError():
            return http.NoHttpAnswer(text, made, sent=True)
        case _:
            return http.InvalidHttpAnswer(text, made)


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if type(error) in {aiohttp.ClientConnectorError, aiohttp.ClientConnectorDNSError}:
        failed = cast("aiohttp.ClientConnectorError", error)  # its own text always mentions TLS
        number = failed.os_error.errno or 0
        reason = os.strerror(number) if number > 0 else failed.strerror or failed.os_error
        return f"{failed.host}:{failed.port}: {reason}"
    return str(error) or type(error).__name__
