"""The host's own errors, derived from :class:`auditord_hookspecs.AuditordError`."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from auditord_hookspecs import AuditordError


class ConfigurationError(AuditordError):
    """The configuration cannot be used. The message names the file, the option and the allowed values.

    Remedy:
        correct the named option. `auditord config check` checks it without a daemon, `auditord manual options`
        describes every option.
    """


def refusal(faults: Sequence[str]) -> ConfigurationError:
    if len(faults) == 1:
        return ConfigurationError(f"the configuration cannot be used: {faults[0]}")
    return ConfigurationError("\n  ".join([f"the configuration cannot be used, {len(faults)} faults:", *faults]))


PERMISSION_REMEDY: Final = "run it as root, or as the daemon's user: runuser -u auditord -- auditord …"


def reason_of(error: OSError) -> str:
    """Return why the operating system refused; for missing permissions, also the remedy."""
    reason = error.strerror or str(error)
    return f"{reason}: {PERMISSION_REMEDY}" if isinstance(error, PermissionError) else reason


class HookError(AuditordError):
    """A hook module cannot be loaded or breaks a rule. The message names the module and its distribution.

    Remedy:
        repair or uninstall the named distribution, or add the module to hooks.disabled; `auditord hooks` lists all
        modules.
    """


class StoreUnavailable(AuditordError):
    """The database does not answer or cannot write at the moment. The same call may succeed later.

    Remedy:
        run `auditord doctor` to check the database of store.url and its disk. Meanwhile, collected and posted records
        wait in the spool.
    """


class StoreMisconfigured(StoreUnavailable):
    """The database refuses this daemon (user, password, name, certificate), until that is corrected.

    Remedy:
        correct store.url, the password or the permissions, and test them with `auditord config check --connect`.
        Meanwhile, posts wait in the spool.
    """


class StoreDamaged(StoreUnavailable):
    """The database's file is damaged. Nothing is written to it from now on.

    Remedy:
        run `auditord database check`, which reads every page and says what to do next.
    """


class SchemaMismatch(AuditordError):
    """The database's schema is older or newer than this version's, was changed, or is not of auditord.

    Remedy:
        if the tables are older, run `auditord database migrate`; if they are newer, install that version of auditord
        again; if another program added triggers, views, tables or indexes, remove them.
    """


class NoTables(SchemaMismatch):
    """The database exists, but has no tables of auditord, or has lost them.

    Remedy:
        run `auditord database migrate`, then start the daemon.
    """


class MigrationInterrupted(AuditordError):
    """A migration was asked to stop. It has changed nothing.

    Remedy:
        run `auditord database migrate` again.
    """


class StoreMismatch(AuditordError):
    """The record store and the spool do not belong together, or one of them is an older copy.

    Remedy:
        do what the message says: put back the part that belongs here, run `auditord restore`, or run
        `auditord database adopt`.
    """


class StateInUse(AuditordError):
    """Another process owns the state folder.

    Remedy:
        use a command that works while the daemon runs, stop the daemon, or configure another state_dir.
    """


class DaemonsConnected(AuditordError):
    """Other daemons use the database whose tables are to be changed.

    Remedy:
        stop the daemons that the message names, or use --end-sessions.
    """


class TurnLost(AuditordError):
    """Another process has taken over the turn of a plugin. This run's writes are refused.

    Remedy:
        none: the other daemon runs the plugin. If both clocks are right and the network works, find out why this
        daemon was silent.
    """


class RanElsewhere(AuditordError):
    """A scheduled run is skipped because another daemon has run the plugin.

    Remedy:
        none: only one daemon at a time runs a plugin. `auditord status --all` shows which.
    """


class UnknownInstance(AuditordError):
    """No enabled instance has this name.

    Remedy:
        see the names in `auditord status`, and check that the instance is enabled. The daemon learns about instances
        that were added to the files with `auditord config reload`.
    """


class UnsuitableRequest(AuditordError):
    """This kind of instance does not support the request.

    Remedy:
        do what the message says: not every kind can collect a period or a single job again.
    """


class DaemonError(AuditordError):
    """The running daemon refused the request, or ended before it answered.

    Remedy:
        do what the message says; `auditord status` and the daemon's log have details.
    """


class OutputClosed(AuditordError):
    """The reader of a command's output has stopped reading (``| head``).

    Remedy:
        none; the command ends quietly, with exit code 1.
    """


class DemoFailed(AuditordError):
    """The demo got an unexpected result.

    Remedy:
        please report it with the output. The demo is the same on every machine.
    """


@contextmanager
def plain_errors() -> Generator[None, None, None]:
    """Unwrap nested exception groups that contain a single error, such as one failed background task."""
    try:
        yield
    except BaseExceptionGroup as group:
        cause: BaseException = group
        causes: Sequence[BaseException] = group.exceptions
        while len(causes) == 1:
            cause = causes[0]
            causes = getattr(cause, "exceptions", ())
        raise cause from None
