"""How far a cluster's accounting has been read, and which periods of it come next."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from auditord_builtin.slurm.config import SlurmConfig
from auditord_hookspecs import AuditordError, Window


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

    def new(self, config: SlurmConfig, until: datetime) -> Window:
        """The period that is due: from the last end, less the overlap, until now, less the lag."""
        return Window(max(self.until - config.overlap, self.earliest), until)

    def far_back(self, until: datetime) -> Window:
        """The period of the look far back that is due; empty if none is."""
        return Window(self.rescan_from or until, until)

    def after_new(self, read: datetime | None) -> "Checkpoint":
        """The new period has been read up to there; None: to no other place than before."""
        return self if read is None else replace(self, until=max(self.until, read))

    def after_far_back(self, read: datetime | None, now: datetime, until: datetime) -> "Checkpoint":
        """The period far back has been read up to there."""
        if read is None:
            return self
        if read < until:
            return replace(self, rescan_from=read)
        return replace(self, rescan_from=None, rescanned=now)
