"""The host's own errors; the root is :class:`auditord_hookspecs.AuditordError`."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from auditord_hookspecs import AuditordError


class ConfigurationError(AuditordError):
    """The configuration cannot be used; the text names file, path, and what is allowed."""


class HookError(AuditordError):
    """A hook module cannot be loaded or breaks the rules; the text names module and distribution."""


class StoreUnavailable(AuditordError):
    """The database does not answer or cannot write at the moment; the same call may succeed later."""


class StoreMisconfigured(StoreUnavailable):
    """The database refuses this daemon (user, password, name, certificate): that passes once it is mended."""


class StoreDamaged(StoreUnavailable):
    """The database's file is damaged; nothing is written to it any more."""


class SchemaMismatch(AuditordError):
    """The database's schema is newer than this version knows, or the file is not one of ours."""


class NoTables(SchemaMismatch):
    """The database is there, and has no tables of ours yet, or no longer."""


class MigrationInterrupted(AuditordError):
    """A migration was asked to stop, and has changed nothing."""


class StoreMismatch(AuditordError):
    """Record store and spool do not belong together, or one of them is an older copy; the text says what to do."""


class StateInUse(AuditordError):
    """Another process owns the state folder."""


class DaemonsConnected(AuditordError):
    """Other daemons use a database whose tables are to be changed."""


class TurnLost(AuditordError):
    """Another process has taken over the turn of a plugin; what its run would have written is refused."""


class RanElsewhere(AuditordError):
    """A tick of the clock is left out, since another daemon has run the plugin."""


class UnknownInstance(AuditordError):
    """No enabled instance has this name."""


class UnsuitableRequest(AuditordError):
    """A request does not go with this kind of instance."""


class DaemonError(AuditordError):
    """The running daemon refused what was asked, or ended meanwhile."""


class OutputClosed(AuditordError):
    """The reader of what a command prints has stopped reading (``| head``)."""


class DemoFailed(AuditordError):
    """The demo did not see what it should."""


@contextmanager
def plain_errors() -> Generator[None, None, None]:
    """Let one fault in one background task be that fault, not a group of groups."""
    try:
        yield
    except BaseExceptionGroup as group:
        cause: BaseException = group
        while len(causes := _causes(cause)) == 1:
            cause = causes[0]
        raise cause from None


def _causes(error: BaseException) -> Sequence[BaseException]:
    causes: Sequence[BaseException] = getattr(error, "exceptions", ())
    return causes
