"""The client of an ARGO Messaging Service (AMS): a token for our certificate, then one message per request.

A fault after the broker has taken a message and before its answer is here makes the same message come twice. That is
safe, since receivers replace by key.
"""

import base64
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from auditord_hookspecs import AuditordError
from auditord_hookspecs.http import CertificateUntrusted, HttpAnswer, HttpClient, HttpError, HttpOptions
from auditord_hookspecs.sources import TlsFiles

OpenHttp: TypeAlias = Callable[[HttpOptions], AbstractAsyncContextManager[HttpClient]]
"""``context.http``."""

MAX_ENCODED: Final = 900_000
"""Bytes of a message in base64; the broker's limit is 1 MB for all of a message."""

_PASSING: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, *range(500, 600)})
_DENIED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class BrokerUnavailable(AuditordError):
    """The broker cannot be reached or cannot work at the moment: the same may succeed later.

    Remedy:
        none if it passes: messages wait and are sent by a later run. Else see network, proxy and `messaging` of the
        plugin.
    """


class BrokerRefused(AuditordError):
    """The broker understood and refused: something has to be changed.

    Remedy:
        the text is the broker's own: mostly the certificate is not registered for the topic in GOCDB, or the project is
        another one.
    """


class TokenRefused(BrokerRefused):
    """The broker does not take the token, or does not any more.

    Remedy:
        none: a new token is fetched; if that is refused as well, see the certificate.
    """


class MessageTooLarge(AuditordError):
    """The broker takes no message of this size: send it in pieces.

    Remedy:
        none: the report is cut into smaller messages; else lower messaging.max_message_size.
    """


@dataclass(frozen=True, slots=True)
class Broker:
    """A topic of an AMS, for clients with certificates.

    Args:
        token_url: answers the client's certificate with a token.
        publish_url: takes messages.
        certificate: PEM file of our own certificate, with its chain.
        key: PEM file of its private key.
        ca: PEM file, or folder with hashed names, of the authorities that may vouch for the broker; None: the system's.
        verify: False trusts any broker.
        token: a ready one, instead of asking for one.
        limit: bytes of a message in base64, above which it is not even tried.
        timeout: of one request.
        retry_waits: seconds before each further attempt after a passing fault.
    """

    token_url: str
    publish_url: str
    certificate: Path
    key: Path
    ca: Path | None = None
    verify: bool = True
    token: str | None = field(default=None, repr=False)
    limit: int = MAX_ENCODED
    timeout: timedelta = timedelta(minutes=1)
    retry_waits: tuple[float, ...] = ()

    @property
    def http_options(self) -> HttpOptions:
        """The options of its connections."""
        return HttpOptions(
            tls=TlsFiles(ca=self.ca, certificate=self.certificate, key=self.key),
            verify=self.verify,
            timeout=self.timeout,
            attempts=len(self.retry_waits) + 1,
            retry_for=timedelta(days=1),
            waits=self.retry_waits,
            retried=_PASSING,
        )


class AmsClient:
    """Publishes to one topic. Make one with :func:`open_broker`."""

    def __init__(self, broker: Broker, http: HttpClient) -> None:
        self._broker = broker
        self._http = http
        self._token = broker.token

    async def publish(self, body: bytes, label: str, url: str | None = None) -> str:
        """Publish one message and return the id that the broker gave it.

        Args:
            body: the signed message.
            label: a name for the message, unique among ours.
            url: another topic's address, instead of the broker's ``publish_url``.

        Raises:
            MessageTooLarge: the broker takes no message of this size, or we know that before.
            BrokerUnavailable: a passing fault, which several attempts did not outlast.
            BrokerRefused: the broker refuses it for another reason.
        """
        data = base64.b64encode(body).decode()
        if len(data) > self._broker.limit:
            raise MessageTooLarge(f"{len(data)} bytes of base64 are more than {self._broker.limit}")
        content = msgspec.json.encode({"messages": [{"attributes": {"empaid": label}, "data": data}]})
        target = url or self._broker.publish_url
        try:
            return await self._publish(target, content)
        except TokenRefused:
            self._token = self._broker.token  # it may have been taken back; a second refusal is about us
            return await self._publish(target, content)

    async def authenticate(self) -> str:
        """The token: the configured one, else that which the broker gives for our certificate.

        Raises:
            BrokerUnavailable: a passing fault.
            BrokerRefused: the broker gives none.
        """
        if self._token is None:
            self._token = await self._fetch_token()
        return self._token

    async def _publish(self, url: str, content: bytes) -> str:
        match await self._exchange("POST", url, content, {"x-api-key": await self.authenticate()}):
            case {"messageIds": [str(identity), *_]}:
                return identity
            case answer:
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

    async def _exchange(
        self, method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Any:  # Any: JSON
        try:
            answer = await self._http.request(method, url, headers=headers, body=body, idempotent=True)
        except CertificateUntrusted as error:
            raise BrokerRefused(f"{error}; the file or folder of messaging.ca_path lacks its authority") from error
        except HttpError as error:
            raise BrokerUnavailable(str(error)) from error
        if answer.status != HTTPStatus.OK:
            raise _fault(answer)
        try:
            return msgspec.json.decode(answer.body)
        except msgspec.DecodeError as error:
            raise BrokerUnavailable(f"{url}: an answer that is not JSON: {answer.text!r}") from error


@asynccontextmanager
async def open_broker(broker: Broker, open_http: OpenHttp) -> AsyncGenerator[AmsClient, None]:
    """Open a client; that the broker is away shows when something is published.

    Raises:
        AuditordError: the TLS files cannot be used.
    """
    async with open_http(broker.http_options) as http:
        yield AmsClient(broker, http)


def _fault(answer: HttpAnswer) -> AuditordError:
    text = f"{answer.request}: HTTP {answer.status}: {answer.text}"
    if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return MessageTooLarge(text)
    if answer.status in _DENIED:
        return TokenRefused(text)
    return BrokerUnavailable(text) if answer.status in _PASSING else BrokerRefused(text)


def token_url(host: str, port: int) -> str:
    """The address at which AMS gives tokens for certificates."""
    return f"https://{host}:{port}/v1/service-types/ams/hosts/{host}:authx509"


def publish_url(host: str, project: str, topic: str, port: int = 443) -> str:
    """The address at which AMS takes the messages of a topic."""
    return f"https://{host}:{port}/v1/projects/{quote(project, safe='')}/topics/{quote(topic, safe='')}:publish"


def other_topic(url: str, topic: str) -> str:
    """The address of another topic of the same broker.

    Raises:
        ValueError: the address is not of the form that :func:`publish_url` makes.
    """
    before, found, _ = url.rpartition("/topics/")
    if not found:
        raise ValueError(f"{url} names no topic; AMS has .../topics/TOPIC:publish")
    return f"{before}/topics/{quote(topic, safe='')}:publish"
