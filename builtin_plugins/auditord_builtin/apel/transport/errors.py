"""What can go wrong between us and the message broker, by what helps."""

from auditord_hookspecs import AuditordError


class TransportError(AuditordError):
    """Root of the faults of this package."""


class CertificateUnusable(TransportError):
    """The certificate or its key cannot be used now; the text names the files and what is wrong."""


class BrokerUnavailable(TransportError):
    """The broker cannot be reached or cannot work at the moment: the same may succeed later."""


class BrokerRefused(TransportError):
    """The broker understood and said no: somebody must change something."""


class MessageTooLarge(TransportError):
    """The broker takes no message of this size: send it in pieces."""
