"""A stand-in for the servers that an instance asks over ``context.http``."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec

from auditord_hookspecs.http import HttpAnswer, HttpOptions, HttpStatusError, Parameters


class HttpRequest(msgspec.Struct, frozen=True):
    """A request that an instance made."""

    method: str
    url: str
    params: Parameters = ()
    headers: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    body: bytes | None = None
    form: Mapping[str, str] | None = None

    def answer(
        self, status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None, **links: str
    ) -> HttpAnswer:
        """Make an answer to it; ``links`` are URLs by ``rel``."""
        return HttpAnswer(f"{self.method} {self.url}", status, headers or {}, body, links)


class FakeHttpClient(msgspec.Struct, frozen=True):
    """Implements :class:`auditord_hookspecs.HttpClient` without a network and without retries."""

    server: Callable[[HttpRequest], HttpAnswer]
    requested: list[HttpRequest]
    options: HttpOptions

    async def request(
        self,
        method: str,
        url: str,
        *,
        params: Parameters = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        form: Mapping[str, str] | None = None,
        idempotent: bool | None = None,  # noqa: ARG002 nothing is repeated
        retry_for: timedelta | None = None,  # noqa: ARG002 the same
    ) -> HttpAnswer:
        """Ask the server."""
        request = HttpRequest(method, url, params, {**self.options.headers, **(headers or {})}, body, form)
        self.requested.append(request)
        answer = self.server(request)
        self.options.on_attempt(answer.status)
        return answer

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        params: Parameters = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> AsyncGenerator["FakeHttpStream", None]:
        """Ask the server; its answer comes in one piece."""
        answer = await self.request(method, url, params=params, headers=headers, body=body)
        if not answer.ok:
            raise HttpStatusError(answer)
        yield FakeHttpStream(answer.headers, answer.body)


class FakeHttpStream(msgspec.Struct, frozen=True):
    """Implements :class:`auditord_hookspecs.HttpStream`."""

    headers: Mapping[str, str]
    body: bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body."""
        if self.body:
            yield self.body
