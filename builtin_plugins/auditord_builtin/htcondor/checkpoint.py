"""How far the history of each schedd has been read: by the names of the newest ads, and not by a job number or a time.

History files grow at one end, in the order in which jobs leave the queue. So what lies before a known ad is new, and
what lies behind it has been read; the numbers of jobs, their times and the files that they are in play no part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from auditord_hookspecs import AuditordError

ANCHORS: Final = 50
"""How many ads are remembered. An answer that holds one of them has no gap; the last one is where it may stop."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far one schedd's history has been read.

    Args:
        earliest: jobs that were over before, and were in the history at the first reading, are never looked at.
        anchors: names of the newest ads, the newest first; versions before 0.2 wrote names of jobs.
        until: when it was last read without a gap; None as long as nothing was.
    """

    earliest: datetime
    anchors: Sequence[str] = ()
    until: datetime | None = None

    @property
    def first(self) -> bool:
        """Whether nothing has been read yet."""
        return self.until is None

    def after(self, names: Sequence[str], now: datetime) -> "Position":
        """All that was in the history has been read; these are the ads of the answer, the newest first.

        A history without any ad is none yet: an answer that was cut before its first byte looks the same.
        """
        anchors = tuple(dict.fromkeys((*names, *self.anchors)))[:ANCHORS]
        return replace(self, anchors=anchors, until=now if anchors else None)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is durable between runs.

    Args:
        schedds: positions by the name of the schedd.
        files: for history files, how many bytes of each were read, by its first ad's fingerprint.
        earliest: for history files, what it is in a position.
        caught_up: for history files, whether all that there was at first has been read.
        current: for history files, the fingerprint of the one that was being written, by its path.
    """

    schedds: Mapping[str, Position] = field(default_factory=dict[str, Position])
    files: Mapping[str, int] = field(default_factory=dict[str, int])
    earliest: datetime | None = None
    caught_up: bool = False
    current: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def from_json(cls, stored: Any) -> "Checkpoint":  # Any: JSON that another version may have written
        """Read back what :meth:`to_json` wrote.

        Raises:
            AuditordError: it is something else.
        """
        if stored is None:
            return cls()
        try:
            return cls(
                {name: _position(each) for name, each in stored["schedds"].items()},
                {str(name): int(size) for name, size in stored["files"].items()},
                _moment(stored["earliest"]),
                bool(stored["caught_up"]),
                {str(path): str(name) for path, name in stored.get("current", {}).items()},
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise AuditordError(f"the checkpoint {stored!r} is none of this version's: {error}") from error

    def to_json(self) -> Mapping[str, Any]:  # Any: JSON for the spool
        """JSON for the spool."""
        return {
            "schedds": {name: _written(position) for name, position in self.schedds.items()},
            "files": dict(self.files),
            "earliest": self.earliest and self.earliest.isoformat(),
            "caught_up": self.caught_up,
            "current": dict(self.current),
        }

    def with_schedd(self, name: str, position: Position) -> "Checkpoint":
        """The same with another position."""
        return replace(self, schedds={**self.schedds, name: position})


def _position(stored: Any) -> Position:  # Any: JSON that another version may have written
    anchors = tuple(str(name) for name in stored["anchors"])
    return Position(datetime.fromisoformat(stored["earliest"]), anchors, _moment(stored["until"]))


def _moment(stored: str | None) -> datetime | None:
    return None if stored is None else datetime.fromisoformat(stored)


def _written(position: Position) -> Mapping[str, Any]:  # Any: JSON for the spool
    return {
        "earliest": position.earliest.isoformat(),
        "anchors": list(position.anchors),
        "until": position.until and position.until.isoformat(),
    }
