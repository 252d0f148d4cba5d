"""The host's own errors; the root is :class:`auditord_hookspecs.AuditordError`."""

from auditord_hookspecs import AuditordError


class ConfigurationError(AuditordError):
    """The configuration cannot be used; the text names file, path, and what is allowed."""


class HookError(AuditordError):
    """A hook module cannot be loaded or breaks the rules; the text names module and distribution."""


class StoreUnavailable(AuditordError):
    """The database does not answer or cannot write at the moment; the same call may succeed later."""


class SchemaMismatch(AuditordError):
    """The database's schema is newer than this version knows, or the file is not one of ours."""


class StateInUse(AuditordError):
    """Another process owns the state folder."""
