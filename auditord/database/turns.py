"""Turns: one process at a time runs an instance of a plugin, on whatever host it is."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Occasion:
    """The reason for a run: a tick of the clock, or (without tick and interval) a demand, which is always met.

    Args:
        daemon: the spool id of the daemon that is to run.
        tick: the latest instant of the cron line; left out if another daemon has run for this tick.
        within: left out if another daemon's last run began less than this before the turn was asked for.
    """

    daemon: str
    tick: datetime | None = None
    within: timedelta | None = None


@dataclass(frozen=True, slots=True)
class HeldTurn:
    """A turn that is taken.

    Args:
        task: the plugin.
        host: of the holder.
        process: its process id there.
        since: when it got the turn, by the database's clock.
        expired: it has not renewed its lease in time; the next one that asks takes over.
    """

    task: str
    host: str
    process: int
    since: datetime
    expired: bool
