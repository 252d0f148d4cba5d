"""Send messages to the broker, signed with the host certificate (S/MIME), or show them unsigned in a dry run."""

import base64
import quopri
import warnings
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs7 import PKCS7Options, PKCS7SignatureBuilder
from typing_extensions import override

from auditord_builtin.apel import metrics
from auditord_builtin.apel.config import ApelConfig, MessagingConfig
from auditord_builtin.apel.messages import Message
from auditord_hookspecs import AuditordError, PluginContext
from auditord_hookspecs.http import CertificateUntrusted, HttpClient, HttpError, HttpOptions
from auditord_hookspecs.sources import TlsFiles
from auditord_hookspecs.wording import counted

SigningKey: TypeAlias = RSAPrivateKey | EllipticCurvePrivateKey

SOON: Final = timedelta(days=14)
"""Each run warns of a certificate that expires within this time: it takes days to get a new host certificate."""

_SHORT_NAMES: Final = {"0.9.2342.19200300.100.1.1": "UID", "1.2.840.113549.1.9.1": "emailAddress"}
"""GOCDB's names of two attributes, by OID. The others have their RFC 4514 names."""

_QUOTED_HEADER: Final = b"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\n"
_ENCRYPTION_MARK: Final = b"pkcs7-mime"
"""The receiver mistakes a message with this word for an encrypted one and fails, so the word is sent encoded."""


class CertificateUnusable(AuditordError):
    """The certificate or its key cannot be used now. The message names the file and the problem.

    Remedy:
        repair or renew the named file, and make it readable by the service's user.
    """


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate with its chain and its private key.

    Args:
        file: the certificate's file, for error messages and warnings.
        chain: the certificates that follow the host certificate in the file.
    """

    file: Path
    certificate: x509.Certificate
    chain: Sequence[x509.Certificate]
    key: SigningKey = field(repr=False)

    @property
    def subject(self) -> str:
        """The certificate's subject in GOCDB's form (*Host DN*): ``/DC=org/O=Example/CN=host.example.org``."""
        parts = list(self.certificate.subject)
        names = [_SHORT_NAMES.get(part.oid.dotted_string, part.rfc4514_attribute_name) for part in parts]
        values = zip(names, parts, strict=True)
        return "".join(f"/{name}={part.value!s}" for name, part in values)

    @property
    def expires(self) -> datetime:
        """The end of the certificate's validity (aware)."""
        return self.certificate.not_valid_after_utc

    def check(self, now: datetime) -> str | None:
        """Return a warning if the certificate expires soon, else None.

        Raises:
            CertificateUnusable: it has expired, or is not valid yet.
        """
        if now >= self.expires:
            raise CertificateUnusable(
                f"{self.file}: the certificate {self.subject} expired on {_day(self.expires)}: put a new one there"
            )
        if now < self.certificate.not_valid_before_utc:
            begins = _day(self.certificate.not_valid_before_utc)
            raise CertificateUnusable(
                f"{self.file}: the certificate {self.subject} is not valid before {begins}: is the clock right?"
            )
        if self.expires - now > SOON:
            return None
        days = counted((self.expires - now).days, "day")
        return f"{self.file}: the certificate {self.subject} expires on {_day(self.expires)}, in {days}: renew it"


def load_credentials(certificate: Path, key: Path) -> Credentials:
    """Read a certificate (PEM, its chain may follow) and its unencrypted private key (PEM).

    Raises:
        CertificateUnusable: a file cannot be read or used, or they do not belong together.
    """
    data = _read(certificate)
    try:
        own, *chain = x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise CertificateUnusable(f"{certificate}: no certificate in PEM form: {error}") from error
    data = _read(key)
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings of old algorithms: the CA chose them
            private = load_pem_private_key(data, password=None)
    except TypeError as error:
        raise CertificateUnusable(
            f"{key}: the key is encrypted, and a daemon cannot ask for its passphrase: store it without one, "
            "readable by the service's user alone"
        ) from error
    except ValueError as error:
        raise CertificateUnusable(f"{key}: no private key in PEM form: {error}") from error
    if not isinstance(private, RSAPrivateKey | EllipticCurvePrivateKey):
        raise CertificateUnusable(f"{key}: messages are signed with RSA or elliptic-curve keys, not with this kind")
    if own.public_key() != private.public_key():
        raise CertificateUnusable(f"{key} is not the key of the certificate in {certificate}")
    return Credentials(certificate, own, chain, private)


def sign(text: str, credentials: Credentials) -> bytes:
    """Return a message's text as a signed message (``multipart/signed``) in ASCII.

    Text with other characters, or with the word that marks encrypted messages, is encoded as quoted-printable.
    """
    plain = text.isascii() and _ENCRYPTION_MARK.decode() not in text
    quoted = quopri.encodestring(text.encode()).replace(_ENCRYPTION_MARK, b"pkcs7=2Dmime")
    data = text.encode() if plain else _QUOTED_HEADER + quoted
    options = [PKCS7Options.DetachedSignature, *([PKCS7Options.Text] if plain else [])]
    builder = PKCS7SignatureBuilder().set_data(data)
    builder = builder.add_signer(credentials.certificate, credentials.key, SHA256())
    for certificate in credentials.chain:
        builder = builder.add_certificate(certificate)
    return builder.sign(Encoding.SMIME, options)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CertificateUnusable(f"{file}: cannot be read: {error.strerror}") from error


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


OpenHttp: TypeAlias = Callable[[HttpOptions], AbstractAsyncContextManager[HttpClient]]

_TEMPORARY: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, *range(500, 600)})
_DENIED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class BrokerUnavailable(AuditordError):
    """The broker is unreachable, reports a temporary error, or sends an unusable answer. A retry may succeed.

    Remedy:
        none if the problem is temporary: messages wait and are sent by a later run. Otherwise check network, proxy and
        the plugin's `messaging` options.
    """


class BrokerRefused(AuditordError):
    """The broker refuses the request permanently, or its certificate is not trusted. A retry cannot succeed.

    Remedy:
        read the reason in the message. In most cases our certificate is not registered for the topic in GOCDB, or the
        configured project is wrong. If the broker's certificate is not trusted, check messaging.ca_path.
    """


class TokenRefused(BrokerRefused):
    """The broker does not accept the token, or no longer does.

    Remedy:
        if messaging.token is set, replace it, or remove the option. Otherwise none: a new token is fetched; if that is
        refused as well, check the certificate.
    """


class MessageTooLarge(AuditordError):
    """The message is larger than the broker or ``messaging.max_message_size`` allows, and must be split.

    Remedy:
        none: the report is split into smaller messages. If the broker refuses those as well, lower
        messaging.max_message_size.
    """


class AmsClient:
    """Publishes messages to the broker, an ARGO Messaging Service (AMS). Open one with :func:`open_broker`."""

    def __init__(self, messaging: MessagingConfig, http: HttpClient) -> None:
        self._messaging = messaging
        self._http = http
        self._token = self._configured_token = None if messaging.token is None else messaging.token.get_secret_value()

    async def publish(self, body: bytes, label: str, topic: str | None = None) -> str:
        """Publish a message and return the broker's id for it.

        Args:
            body: the signed message.
            label: a name for the message, unique among our messages.
            topic: the topic; None for the configured one.

        Raises:
            MessageTooLarge: the message exceeds the broker's limit or the configured one.
            BrokerUnavailable: all attempts failed with a temporary error, or the answer is unusable.
            BrokerRefused: the broker refuses the message for another reason, or its certificate is not trusted.
        """
        data = base64.b64encode(body).decode()
        if len(data) > (limit := self._messaging.max_message_size):
            raise MessageTooLarge(f"{len(data)} bytes of base64 exceed the limit of {limit}")
        content = msgspec.json.encode({"messages": [{"attributes": {"empaid": label}, "data": data}]})
        target = self._messaging.publish_url(topic)
        try:
            return await self._publish(target, content)
        except TokenRefused:
            # A fetched token may have been revoked: forget it and fetch a new one. A configured one is tried once more.
            self._token = self._configured_token
            return await self._publish(target, content)

    async def authenticate(self) -> str:
        """Return the configured token, or fetch one with our certificate.

        Raises:
            BrokerUnavailable: the broker is unreachable, reports a temporary error, or sends no token.
            BrokerRefused: the broker issues no token for our certificate, or its own is not trusted.
        """
        if self._token is not None:
            return self._token
        try:
            answer = await self._exchange("GET", self._messaging.token_url)
        except TokenRefused as error:
            raise BrokerRefused(f"the broker issues no token for our certificate: {error}") from error
        match answer:
            case {"token": str(token)} if token:
                self._token = token
                return token
            case _:
                raise BrokerUnavailable(f"{self._messaging.token_url}: the answer has no token")

    async def _publish(self, url: str, content: bytes) -> str:
        match await self._exchange("POST", url, content, {"x-api-key": await self.authenticate()}):
            case {"messageIds": [str(identity), *_]}:
                return identity
            case answer:
                raise BrokerUnavailable(f"{url}: the answer has no message id: {answer!r:.300}")

    async def _exchange(
        self, method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Any:
        try:
            answer = await self._http.request(method, url, headers=headers, body=body, idempotent=True)
        except CertificateUntrusted as error:
            raise BrokerRefused(f"{error}; the file or folder of messaging.ca_path lacks its CA") from error
        except HttpError as error:
            raise BrokerUnavailable(str(error)) from error
        text = f"{answer.request}: HTTP {answer.status}: {answer.text}"
        if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise MessageTooLarge(text)
        if answer.status in _DENIED:
            raise TokenRefused(text)
        if answer.status in _TEMPORARY:
            raise BrokerUnavailable(text)
        if answer.status != HTTPStatus.OK:
            raise BrokerRefused(text)
        try:
            return msgspec.json.decode(answer.body)
        except msgspec.DecodeError as error:
            raise BrokerUnavailable(f"{url}: the answer is not JSON: {answer.text!r}") from error


_TIMEOUT: Final = timedelta(seconds=30)
RETRIES: Final = 3
RETRY_WAIT_SECONDS: Final = 5.0
"""Seconds before the first retry. Each further wait is twice as long as the previous one."""


@asynccontextmanager
async def open_broker(
    messaging: MessagingConfig, open_http: OpenHttp, *, retries: int = RETRIES, first_wait: float = RETRY_WAIT_SECONDS
) -> AsyncGenerator[AmsClient, None]:
    """Open a client for the broker. It connects when it publishes the first message.

    Raises:
        AuditordError: the TLS files cannot be used.
    """
    options = HttpOptions(
        tls=TlsFiles(ca=messaging.ca_path, certificate=messaging.client_cert, key=messaging.client_key),
        verify=messaging.verify_ca,
        timeout=_TIMEOUT,
        attempts=retries + 1,
        retry_for=timedelta(days=1),
        waits=tuple(first_wait * 2**attempt for attempt in range(retries)),
        retried=_TEMPORARY,
    )
    async with open_http(options) as http:
        yield AmsClient(messaging, http)


class Publisher(Protocol):
    """A destination of messages."""

    async def publish(self, message: Message, label: str) -> str:
        """Send a message and return its id at the destination.

        Raises:
            MessageTooLarge: the message must be split.
            AuditordError: the message was not accepted.
        """
        ...


@dataclass(frozen=True, slots=True)
class SignedPublisher(Publisher):
    """Signs messages and sends them to the broker.

    Args:
        accelerators: the topic for messages about accelerators, which are JSON; None for the configured topic.
    """

    client: AmsClient
    credentials: Credentials
    accelerators: str | None

    @override
    async def publish(self, message: Message, label: str) -> str:
        topic = self.accelerators if message.text.startswith("{") else None
        return await self.client.publish(sign(message.text, self.credentials), label, topic)


@dataclass(frozen=True, slots=True)
class ShowingPublisher(Publisher):
    """Shows each message of a dry run, unsigned."""

    context: PluginContext

    @override
    async def publish(self, message: Message, label: str) -> str:
        self.context.show(message.text.removesuffix("\n"))
        return f"dry run, {label}"


@asynccontextmanager
async def open_publisher(config: ApelConfig, context: PluginContext) -> AsyncGenerator[Publisher, None]:
    """Open the publisher of a run. A dry run needs no certificate, but shows whether the configured one could be used.

    Raises:
        CertificateUnusable: the certificate or its key cannot be used.
    """
    messaging = config.messaging
    if context.dry_run:
        try:
            credentials = load_credentials(messaging.client_cert, messaging.client_key)
            warning = credentials.check(context.now())
        except CertificateUnusable as error:
            context.show(f"Nothing could be sent: {error}")
        else:
            if warning:
                context.show(warning)
            context.show(f"Signed by {credentials.subject}, to {messaging.publish_url()}:")
        yield ShowingPublisher(context)
        return
    credentials = load_credentials(messaging.client_cert, messaging.client_key)
    metrics.EXPIRY.labels(context.instance).set(credentials.expires.timestamp())
    if warning := credentials.check(context.now()):
        context.log.warning("%s", warning)
    accelerators = None if config.accelerators is None else config.accelerators.topic
    async with open_broker(messaging, context.http) as client:
        yield SignedPublisher(client, credentials, accelerators)


def say(context: PluginContext, text: str) -> None:
    """Show a message in a dry run, else log it."""
    if context.dry_run:
        context.show(text)
    else:
        context.log.info("%s", text)


def label(now: datetime, number: int) -> str:
    """Return a message's name (``empaid``) in the form of SSM (Secure STOMP Messenger), the APEL client's sender.

    ``number`` makes it unique.
    """
    return f"{now:%Y%m%d}/{now:%Y%m%d%H%M%S}{number % 1_000_000:06}"
