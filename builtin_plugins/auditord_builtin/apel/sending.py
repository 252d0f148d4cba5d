"""The destination of messages: the broker, signed; or the terminal, in a dry run."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from auditord_builtin.apel import metrics
from auditord_builtin.apel.broker import AmsClient, Broker, open_broker, other_topic, publish_url, token_url
from auditord_builtin.apel.certificate import CertificateUnusable, Credentials, load_credentials, sign
from auditord_builtin.apel.config import ApelConfig, MessagingConfig
from auditord_builtin.apel.messages import Message
from auditord_hookspecs import PluginContext

RETRY_WAIT_SECONDS: Final = 5.0
"""Before the first further attempt; each one after it waits twice as long."""


class Publisher(Protocol):
    """The destination of messages."""

    async def publish(self, message: Message, label: str) -> str:
        """Hand a message over and return the id that it got there.

        Raises:
            MessageTooLarge: it has to be sent in pieces.
            AuditordError: it was not taken.
        """
        ...


@dataclass(frozen=True, slots=True)
class SignedPublisher:
    """Signs messages and gives them to the broker; those about accelerators have a URL of their own."""

    client: AmsClient
    credentials: Credentials
    accelerators: str | None

    async def publish(self, message: Message, label: str) -> str:
        """See :class:`Publisher`."""
        url = self.accelerators if message.text.startswith("{") else None
        return await self.client.publish(sign(message.text, self.credentials), label, url)


@dataclass(frozen=True, slots=True)
class ShowingPublisher:
    """Shows each message of a dry run as it is before it is signed."""

    context: PluginContext

    async def publish(self, message: Message, label: str) -> str:
        """See :class:`Publisher`."""
        self.context.show(message.text.removesuffix("\n"))
        return f"dry run, {label}"


@asynccontextmanager
async def open_publisher(config: ApelConfig, context: PluginContext) -> AsyncGenerator[Publisher, None]:
    """Open the publisher of a run; a dry run needs no certificate, and says what is wrong with it.

    Raises:
        CertificateUnusable: the certificate or its key cannot be used.
    """
    messaging = config.messaging
    if context.dry_run:
        _show_certificate(messaging, context)
        yield ShowingPublisher(context)
        return
    credentials = load_credentials(messaging.client_cert, messaging.client_key)
    metrics.EXPIRY.labels(context.instance).set(credentials.expires.timestamp())
    if warning := credentials.check(context.now()):
        context.log.warning("%s", warning)
    accelerators = None if config.accelerators is None else _publish_url(messaging, config.accelerators.topic)
    async with open_broker(broker_of(messaging), context.http) as client:
        yield SignedPublisher(client, credentials, accelerators)


def say(context: PluginContext, text: str) -> None:
    """Show a text in a dry run, else log it."""
    if context.dry_run:
        context.show(text)
    else:
        context.log.info("%s", text)


def broker_of(messaging: MessagingConfig) -> Broker:
    """The broker that the options describe."""
    return Broker(
        token_url=messaging.auth_url or token_url(messaging.host, messaging.port),
        publish_url=_publish_url(messaging, messaging.topic),
        certificate=messaging.client_cert,
        key=messaging.client_key,
        ca=messaging.ca_path,
        verify=messaging.verify_ca,
        token=None if messaging.token is None else messaging.token.get_secret_value(),
        limit=messaging.max_message_size,
        timeout=messaging.timeout,
        retry_waits=tuple(RETRY_WAIT_SECONDS * 2**attempt for attempt in range(messaging.retry)),
    )


def label(now: datetime, number: int) -> str:
    """The name of a message (``empaid``): the form of other senders, with a number that makes it unique."""
    return f"{now:%Y%m%d}/{now:%Y%m%d%H%M%S}{number % 1_000_000:06}"


def _publish_url(messaging: MessagingConfig, topic: str) -> str:
    if messaging.ams_url is None:
        return publish_url(messaging.host, messaging.project, topic)
    url = messaging.ams_url.removesuffix("?key=")
    return url if topic == messaging.topic else other_topic(url, topic)


def _show_certificate(messaging: MessagingConfig, context: PluginContext) -> None:
    try:
        credentials = load_credentials(messaging.client_cert, messaging.client_key)
        warning = credentials.check(context.now())
    except CertificateUnusable as error:
        context.show(f"Nothing could be sent: {error}")
        return
    if warning:
        context.show(warning)
    context.show(f"Signed by {credentials.subject}, to {_publish_url(messaging, messaging.topic)}:")
