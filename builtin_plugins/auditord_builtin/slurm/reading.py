"""A period of accounting, read part by part and piece by piece: memory holds one piece, whatever a part holds.

A part is longer while sacct's answers are small, and shorter where one of its limits is met.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from auditord_builtin.slurm.classifying import Found, find_runs
from auditord_builtin.slurm.config import JobsConfig
from auditord_builtin.slurm.conversion import reads_steps
from auditord_builtin.slurm.query import Query, stream_query
from auditord_hookspecs import CollectorContext, CommandFailed, Window

LONGEST: Final = timedelta(days=32)
"""So seven years without a job are some ninety calls, and no answer is that of a whole year."""

_SHORTEST: Final = timedelta(seconds=1)
_FEW: Final = 1_000
_MANY: Final = 20_000
_AFTER_TIMEOUT: Final = 8
"""Each attempt that runs into the time limit takes minutes, so there must not be many."""

_CAREFUL: Final = 30
"""So many parts after a limit was met are no longer than the one that was not too long."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a period's accounting; ``until`` the period has been read with it, None in the middle of a part."""

    found: Found
    until: datetime | None


async def read_period(
    config: JobsConfig, context: CollectorContext, period: Window, states: Sequence[str]
) -> AsyncGenerator[Piece, None]:
    """Read what ended within a period, the oldest part first; where a limit is met, go on with shorter parts.

    Nothing is read of an empty or reversed period; without states, jobs of all states are read, also of unknown ones.

    Raises:
        CommandFailed: sacct did not do what it should, and would not for a shorter part.
    """
    pace, start = Pace(config.slice), period.start
    while start < period.stop:
        part = Window(start, min(start + pace.length, period.stop))
        try:
            async with aclosing(_read_part(config, context, Query(part, states, reads_steps(config)), pace)) as pieces:
                async for piece in pieces:
                    yield piece
        except CommandFailed as error:
            pace.failed(part, error)
            context.log.warning("%s; from %s on sacct is asked for %s at a time", error, part.start, pace.length)
        else:
            start = part.stop


async def _read_part(
    config: JobsConfig, context: CollectorContext, query: Query, pace: "Pace"
) -> AsyncGenerator[Piece, None]:
    """The pieces of a part; the last one, which ends it, only when the whole answer is there."""
    rows, last = 0, None
    async with aclosing(stream_query(config, context, query)) as tables:
        async for table in tables:
            if last is not None:
                yield Piece(last, None)
            rows += len(table.rows)
            last = find_runs(table, query.window)
    pace.went_well(rows)
    yield Piece(last or Found({}), query.window.stop)


class Pace:
    """Chooses the next part's length, ``usual`` at first."""

    def __init__(self, usual: timedelta) -> None:
        self._usual = usual
        self._longest = max(usual, LONGEST)
        self._careful = 0
        self.length = usual

    def went_well(self, rows: int) -> None:
        """Note how many rows the last answer had."""
        self._careful = max(self._careful - 1, 0)
        if rows <= _FEW and not self._careful:
            self.length = min(self.length * 2, self._longest)
        elif rows > _MANY and self.length > self._usual:
            self.length = max(self.length / 2, self._usual)

    def failed(self, part: Window, error: CommandFailed) -> None:
        """Take a shorter part next, which begins where this one did.

        Raises:
            CommandFailed: a shorter one would not help.
        """
        length, limited = part.stop - part.start, error.timed_out or error.printed_too_much
        if length > self._usual:  # we made it that long, and a slurmdbd may refuse long periods (MaxQueryTimeRange)
            self._longest = self._longest if limited else self._usual
            self.length = self._usual
        elif limited and length > _SHORTEST:
            self._careful = _CAREFUL
            shorter = length / (_AFTER_TIMEOUT if error.timed_out else 2)
            self.length = max(timedelta(seconds=shorter // _SHORTEST), _SHORTEST)  # Slurm's times have no fractions
        else:
            raise error
