"""How far a cluster's accounting has been read, and which pages of it come next."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from auditord_builtin.slurm.config import SlurmConfig
from auditord_hookspecs import AuditordError, Window


@dataclass(frozen=True, slots=True)
class Page:
    """What one call of sacct reads.

    Args:
        window: jobs that ended within.
        deep: whether it belongs to the look far back.
    """

    window: Window
    deep: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is durable between runs.

    Args:
        earliest: jobs that ended before are never looked at; fixed by the first run.
        until: jobs that ended before are accounted for, as far as the database knew them.
        rescanned: when the last look far back was finished.
        rescan_from: how far one that is under way has come; None if none is.
    """

    earliest: datetime
    until: datetime
    rescanned: datetime
    rescan_from: datetime | None = None

    @classmethod
    def first(cls, config: SlurmConfig, now: datetime) -> "Checkpoint":
        """Before anything has been read."""
        earliest = config.earliest_datetime or now
        return cls(earliest, earliest, now)

    @classmethod
    def from_json(cls, stored: Any) -> "Checkpoint":  # Any: JSON that another version may have written
        """Read back what :meth:`to_json` wrote.

        Raises:
            AuditordError: it is something else.
        """
        try:
            return cls(**{name: value and datetime.fromisoformat(value) for name, value in stored.items()})
        except (AttributeError, TypeError, ValueError) as error:
            raise AuditordError(f"the checkpoint {stored!r} is none of this version's: {error}") from error

    def to_json(self) -> Mapping[str, str | None]:
        """JSON for the spool."""
        moments: dict[str, datetime | None] = asdict(self)
        return {name: moment.isoformat() if moment else None for name, moment in moments.items()}

    def begin(self, config: SlurmConfig, now: datetime, until: datetime) -> "Checkpoint":
        """Start a look far back if one is due and none is under way; what is stored decides, not the clock."""
        if not config.rescan_window or self.rescan_from or now - self.rescanned < config.rescan_every:
            return self
        return replace(self, rescan_from=max(until - config.rescan_window, self.earliest))

    def plan(self, config: SlurmConfig, until: datetime) -> list[Page]:
        """The pages that are due: from the last end, less the overlap, until now, less the lag; then those far back."""
        new = Window(max(self.until - config.overlap, self.earliest), until)
        far_back = Window(self.rescan_from or until, until)
        return [
            *(Page(window) for window in slices(new, config.slice)),
            *(Page(window, deep=True) for window in slices(far_back, config.slice)),
        ]

    def after(self, page: Page, now: datetime, until: datetime) -> "Checkpoint":
        """The page has been read."""
        if not page.deep:
            return replace(self, until=max(self.until, page.window.stop))
        if page.window.stop < until:
            return replace(self, rescan_from=page.window.stop)
        return replace(self, rescan_from=None, rescanned=now)


def slices(period: Window, longest: timedelta) -> Iterator[Window]:
    """The period in parts of at most this length, the oldest first; none if it is empty or reversed."""
    start = period.start
    while start < period.stop:
        stop = min(start + longest, period.stop)
        yield Window(start, stop)
        start = stop
