"""The client of an ARGO Messaging Service: a token for our certificate, then one message per request.

A fault after the broker has taken a message and before its answer is here makes the same message come twice. That is
safe, since whoever reads it replaces by key.
"""

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, TypeVar

import aiohttp
import anyio
import msgspec

from auditord_builtin.apel.transport.broker import Broker
from auditord_builtin.apel.transport.errors import BrokerRefused, BrokerUnavailable, MessageTooLarge

T = TypeVar("T")

_PASSING: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_WHO_ARE_YOU: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_SHOWN: Final = 300


class TokenRefused(BrokerRefused):
    """The broker does not take the token (any more)."""


class AmsClient:
    """Publishes to one topic. Make one with :func:`open_broker`.

    Args:
        broker: where and how.
        session: an open one that shows our certificate.
    """

    def __init__(self, broker: Broker, session: aiohttp.ClientSession) -> None:
        self._broker = broker
        self._session = session
        self._token = broker.token

    async def publish(self, body: bytes, label: str, url: str | None = None) -> str:
        """Publish one message and return the id that the broker gave it.

        Args:
            body: the signed message.
            label: a name for the message, unique among ours.
            url: where to, instead of the broker's ``publish_url``: another topic.

        Raises:
            MessageTooLarge: the broker takes no message of this size, or we know that before.
            BrokerUnavailable: a passing fault, which several attempts did not outlast.
            BrokerRefused: anything else that the broker says no to.
        """
        data = base64.b64encode(body).decode()
        if len(data) > self._broker.limit:
            raise MessageTooLarge(f"{len(data)} bytes of base64 are more than {self._broker.limit}")
        request = msgspec.json.encode({"messages": [{"attributes": {"empaid": label}, "data": data}]})
        target = url or self._broker.publish_url
        try:
            return await self._attempt(lambda: self._publish(target, request))
        except TokenRefused:
            self._token = self._broker.token  # it may have been taken back; a second refusal is about us
            return await self._attempt(lambda: self._publish(target, request))

    async def _publish(self, url: str, request: bytes) -> str:
        if self._token is None:
            self._token = await self._fetch_token()
        headers = {"x-api-key": self._token, "Content-Type": "application/json"}
        answer = await self._exchange("POST", url, data=request, headers=headers)
        match answer:
            case {"messageIds": [str(identity), *_]}:
                return identity
            case _:
                raise BrokerUnavailable(f"{url}: an answer without a message id: {answer!r:.300}")

    async def _fetch_token(self) -> str:
        try:
            answer = await self._exchange("GET", self._broker.token_url)
        except TokenRefused as error:
            raise BrokerRefused(f"the broker gives our certificate no token: {error}") from error
        match answer:
            case {"token": str(token)} if token:
                return token
            case _:
                raise BrokerUnavailable(f"{self._broker.token_url}: an answer without a token")

    async def _exchange(self, method: str, url: str, **more: Any) -> Any:  # Any: aiohttp's arguments, and JSON
        try:
            async with self._session.request(method, url, allow_redirects=False, **more) as answer:
                body = await answer.read()
        except aiohttp.ClientConnectorCertificateError as error:
            raise BrokerRefused(
                f"{url}: the broker's certificate is not trusted: {error.certificate_error}; the option for the "
                "authorities names a file or folder that lacks the right one"
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BrokerUnavailable(f"{url}: {_words(error)}") from error
        if answer.status != HTTPStatus.OK:
            raise _fault(url, answer.status, body)
        return _decoded(url, body)

    async def _attempt(self, act: Callable[[], Awaitable[T]]) -> T:
        for wait in self._broker.retry_waits:
            try:
                return await act()
            except BrokerUnavailable:
                await anyio.sleep(wait)
        return await act()


@asynccontextmanager
async def open_broker(broker: Broker) -> AsyncGenerator[AmsClient, None]:
    """A client; whether the broker is there shows when something is published.

    Raises:
        CertificateUnusable: the TLS files cannot be used.
    """
    connector = aiohttp.TCPConnector(ssl=broker.tls())
    timeout = aiohttp.ClientTimeout(total=broker.timeout)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=True) as session:
        yield AmsClient(broker, session)


def _fault(url: str, status: int, body: bytes) -> BrokerRefused | BrokerUnavailable | MessageTooLarge:
    text = f"{url}: HTTP {status}: {body[:_SHOWN].decode(errors='replace').strip()}"
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return MessageTooLarge(text)
    if status in _WHO_ARE_YOU:
        return TokenRefused(text)
    if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return BrokerUnavailable(text)
    return BrokerRefused(text)


def _decoded(url: str, body: bytes) -> Any:  # Any: JSON
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise BrokerUnavailable(f"{url}: an answer that is not JSON: {body[:_SHOWN]!r}") from error


def _words(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
