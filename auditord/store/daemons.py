"""Work on the daemons that use a database: their saved states, and the generations of their spools."""

from datetime import datetime, timedelta

from msgspec.structs import asdict

from auditord.database.instants import from_micros
from auditord.store.protocol import DaemonState, KnownDaemon
from auditord.store.work import Work, ask


def note_daemon(daemon: DaemonState, now: datetime) -> Work[None]:
    """Save the state of a daemon, and forget daemons that ended long ago."""
    yield from ask("note_daemon", **asdict(daemon), now=now)
    yield from ask("forget_daemons", now=now)


def list_daemons(now: datetime) -> Work[list[KnownDaemon]]:
    """Return the saved states of daemons, by host."""
    rows = yield from ask("list_daemons", now=now)
    found: list[KnownDaemon] = []
    for spool_id, host, process, version, state_dir, started_at, queued, oldest, quarantined, ended, age in rows:
        received_at = None if oldest is None else from_micros(oldest)
        began = from_micros(started_at)
        state = DaemonState(
            spool_id, host, process, version, state_dir, began, queued, received_at, quarantined, bool(ended)
        )
        found.append(KnownDaemon(state, timedelta(microseconds=age)))
    return found


def read_generation(spool_id: str) -> Work[int]:
    """Return the generation that the store has reached with a spool, or 0 if the spool is unknown."""
    rows = yield from ask("find_generation", spool_id=spool_id)
    return int(rows[0][0]) if rows else 0


def follows(before: int, generation: int) -> bool:
    """Return whether a generation of a spool may follow the one that the store has saved.

    They are equal if the daemon ended between the store's commit and the spool's.
    """
    return before in {generation - 1, generation}
