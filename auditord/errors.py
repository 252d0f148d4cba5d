"""The host's own errors; the root is :class:`auditord_hookspecs.AuditordError`."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from auditord_hookspecs import AuditordError


class ConfigurationError(AuditordError):
    """The configuration cannot be used; the text names file, path, and the allowed values.

    Remedy:
        mend the named option; `auditord config check` tries it without a daemon, `auditord manual options` has every
        option.
    """


def refusal(faults: Sequence[str]) -> ConfigurationError:
    """One error for all faults of a configuration."""
    if len(faults) == 1:
        return ConfigurationError(f"the configuration cannot be used: {faults[0]}")
    return ConfigurationError("\n  ".join([f"the configuration cannot be used, {len(faults)} faults:", *faults]))


class HookError(AuditordError):
    """A hook module cannot be loaded or breaks the rules; the text names module and distribution.

    Remedy:
        repair or uninstall the named distribution, or name the module in hooks.disabled; `auditord hooks` lists all of
        them.
    """


class StoreUnavailable(AuditordError):
    """The database does not answer or cannot write at the moment; the same call may succeed later.

    Remedy:
        `auditord doctor` says how the database of store.url and its disk are; collectors and posts go on, and wait in
        the spool.
    """


class StoreMisconfigured(StoreUnavailable):
    """The database refuses this daemon (user, password, name, certificate): that passes once it is mended.

    Remedy:
        mend store.url, the password or the rights; posts meanwhile wait in the spool. `auditord config check
        --connect` tries it.
    """


class StoreDamaged(StoreUnavailable):
    """The database's file is damaged; nothing is written to it any more.

    Remedy:
        `auditord database check` reads every page and says how to go on.
    """


class SchemaMismatch(AuditordError):
    """The database's schema is newer than this version knows, or the file is not one of ours.

    Remedy:
        `auditord database migrate` where the tables are older; where they are newer, install that version of auditord
        again.
    """


class NoTables(SchemaMismatch):
    """The database is there, and has no tables of ours yet, or no longer.

    Remedy:
        run `auditord database migrate`, then start the daemon.
    """


class MigrationInterrupted(AuditordError):
    """A migration was asked to stop, and has changed nothing.

    Remedy:
        run `auditord database migrate` again.
    """


class StoreMismatch(AuditordError):
    """Record store and spool do not belong together, or one of them is an older copy; the text says what to do.

    Remedy:
        do what the text says: put back the part that belongs here, `auditord restore --continue`, or `auditord database
        adopt`.
    """


class StateInUse(AuditordError):
    """Another process owns the state folder.

    Remedy:
        use the commands beside the daemon, stop it, or give this one another state_dir.
    """


class DaemonsConnected(AuditordError):
    """Other daemons use a database whose tables are to be changed.

    Remedy:
        stop the daemons that the text names, or use --end-sessions.
    """


class TurnLost(AuditordError):
    """Another process has taken over the turn of a plugin; the writes of its run are refused.

    Remedy:
        none: the other daemon runs the plugin. If both clocks and the network are well, find out why this one was
        silent.
    """


class RanElsewhere(AuditordError):
    """A tick of the clock is left out, since another daemon has run the plugin.

    Remedy:
        none: one daemon at a time runs a plugin; `auditord status --all` shows which.
    """


class UnknownInstance(AuditordError):
    """No enabled instance has this name.

    Remedy:
        see the names in `auditord status`; one that is not enabled is not run. The daemon knows one that is new in the
        files after `auditord config reload`.
    """


class UnsuitableRequest(AuditordError):
    """A request does not go with this kind of instance.

    Remedy:
        do what the text says: not every kind can collect a period or a single job again.
    """


class DaemonError(AuditordError):
    """The running daemon refused the request, or ended meanwhile.

    Remedy:
        do what the text says; `auditord status` and the daemon's log tell more.
    """


class OutputClosed(AuditordError):
    """The reader of what a command prints has stopped reading (``| head``).

    Remedy:
        none; the command ends quietly, with exit code 1.
    """


class DemoFailed(AuditordError):
    """The demo did not see what it should.

    Remedy:
        please report it, with the output: the demo is the same on every machine.
    """


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
