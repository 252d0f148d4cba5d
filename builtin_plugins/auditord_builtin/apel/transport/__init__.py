"""How messages reach APEL: signed with the host certificate, through an ARGO Messaging Service."""

from auditord_builtin.apel.transport.ams import AmsClient, open_broker
from auditord_builtin.apel.transport.broker import Broker, other_topic, publish_url, token_url
from auditord_builtin.apel.transport.credentials import Credentials, load_credentials
from auditord_builtin.apel.transport.errors import (
    BrokerRefused,
    BrokerUnavailable,
    CertificateUnusable,
    MessageTooLarge,
    TransportError,
)
from auditord_builtin.apel.transport.signing import sign

__all__ = [
    "AmsClient",
    "Broker",
    "BrokerRefused",
    "BrokerUnavailable",
    "CertificateUnusable",
    "Credentials",
    "MessageTooLarge",
    "TransportError",
    "load_credentials",
    "open_broker",
    "other_topic",
    "publish_url",
    "sign",
    "token_url",
]
