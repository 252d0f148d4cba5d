"""The collector's run: parts of accounting, of which the last batch moves the checkpoint.

A period is read part by part and piece by piece: memory holds one piece, whatever a part holds. A part is longer while
sacct's answers are small, and shorter where one of its limits is met.
"""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec import structs

from auditord_builtin.slurm.classifying import Found, Waiting, classify, classify_new, find_runs
from auditord_builtin.slurm.config import JobsConfig, SlurmConfig
from auditord_builtin.slurm.conversion import reads_steps
from auditord_builtin.slurm.query import Query, stream_query
from auditord_builtin.slurm.runs import RUNNING
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    Column,
    CommandFailed,
    JobChoice,
    PanelContext,
    PanelPart,
    Table,
    Window,
)
from auditord_hookspecs.outcomes import restore
from auditord_hookspecs.panels import table_of_runs

JOBS_AT_ONCE: Final = 200
"""Jobs that sacct is asked for by their ids at a time."""

_JOB_ID: Final = re.compile(r"[0-9]+(_[0-9]+|\+[0-9]+)?")
_EPOCH: Final = datetime(1970, 1, 2, tzinfo=UTC)  # a start of 0 would mean none to sacct
_MARGIN: Final = timedelta(days=1)
_OPEN_REMEMBERED: Final = timedelta(days=30)
"""The memory of a running job that has its open record; after that it is sent again, which changes nothing."""

_LONGEST: Final = timedelta(days=32)
"""So seven years without a job are some ninety calls, and no answer is that of a whole year."""

_SHORTEST: Final = timedelta(seconds=1)
_FEW: Final = 1_000
_MANY: Final = 20_000
_AFTER_TIMEOUT: Final = 8
"""Each attempt that runs into the time limit takes minutes, so there must not be many."""

_CAREFUL: Final = 30
"""So many parts after a limit was met are no longer than the one that was not too long."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The position in a cluster's accounting, durable between runs.

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

    def batch(self, batch: Batch | None = None) -> Batch:
        """The batch with this checkpoint."""
        return replace(batch or Batch(), checkpoint=msgspec.to_builtins(self))

    def begin(self, config: SlurmConfig, now: datetime, until: datetime) -> "Checkpoint":
        """Start a look far back if one is due and none is under way; what is stored decides, not the clock."""
        if not config.rescan_window or self.rescan_from or now - self.rescanned < config.rescan_every:
            return self
        return structs.replace(self, rescan_from=max(until - config.rescan_window, self.earliest))


async def collect(config: SlurmConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    """Account for the jobs that ended since the last run, or within the window that is to be collected again.

    Raises:
        CommandFailed: sacct did not do what it should; what was not read is read by the next run.
    """
    if context.job is not None or context.window is not None:
        batches = collect_again(config, context)
    else:
        batches = _collect_new(config, context)
    async with aclosing(batches):
        async for batch in batches:
            yield batch


async def collect_again(config: JobsConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    """Account for the context's jobs or for those that ended within its window, seen before or not; no checkpoint.

    Raises:
        AuditordError: these are no ids of jobs.
        CommandFailed: sacct did not do what it should.
    """
    if context.window is None:
        batches = _collect_jobs(config, context, context.job or JobChoice(""))
    else:
        batches = _collect_window(config, context, context.window)
    async with aclosing(batches):
        async for batch in batches:
            yield batch


async def _collect_window(config: JobsConfig, context: CollectorContext, period: Window) -> AsyncGenerator[Batch, None]:
    async with aclosing(_read_period(config, context, period, config.sacct_states)) as pieces:
        async for piece in pieces:
            yield await classify(config, context, piece.found, _remembered(config, context))
            _report(context, period, piece.until)


async def _collect_jobs(
    config: JobsConfig, context: CollectorContext, choice: JobChoice
) -> AsyncGenerator[Batch, None]:
    """All finished runs of jobs, separated by commas."""
    jobs = choice.job_id.split(",")
    if not all(map(_JOB_ID.fullmatch, jobs)):
        raise AuditordError(f"{choice.job_id!r} is no job: write its id, such as 42, 42_7 or 42+1; several with commas")
    ever = Window(_EPOCH, context.now() + timedelta(seconds=1))
    asked = Query(ever, (), reads_steps(config), jobs)
    async with aclosing(stream_query(config, context, asked)) as tables:
        async for table in tables:
            yield await classify(config, context, find_runs(table, ever), _remembered(config, context))


async def _collect_new(config: SlurmConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    now = context.now().replace(microsecond=0)
    until = (now - config.lag).replace(microsecond=0)
    if context.checkpoint is None:  # the first run fixes the beginning, even if nothing can be read yet
        earliest = config.earliest_datetime or now
        checkpoint = Checkpoint(earliest, earliest, now)
        yield checkpoint.batch()
    else:
        checkpoint = restore(context.checkpoint, Checkpoint)
    checkpoint = checkpoint.begin(config, now, until)
    async with aclosing(_read_new(config, context, checkpoint, until)) as batches:
        async for batch, checkpoint in batches:
            yield checkpoint.batch(batch)
    async with aclosing(_read_far_back(config, context, checkpoint, now, until)) as batches:
        async for batch, checkpoint in batches:
            yield checkpoint.batch(batch)
    if config.open_records:
        async with aclosing(_read_running(config, context, now)) as running:
            async for batch in running:
                yield batch
    context.report_progress(1.0)


async def _read_new(
    config: SlurmConfig, context: CollectorContext, checkpoint: Checkpoint, until: datetime
) -> AsyncGenerator[tuple[Batch, Checkpoint], None]:
    """From the last end, less the overlap, until now, less the lag; each batch with the checkpoint after it."""
    period = Window(max(checkpoint.until - config.overlap, checkpoint.earliest), until)
    async with aclosing(_read_period(config, context, period, config.sacct_states)) as pieces:
        async for piece in pieces:
            if piece.until is not None:
                checkpoint = structs.replace(checkpoint, until=max(checkpoint.until, piece.until))
            yield await classify_new(config, context, piece.found, _remembered(config, context)), checkpoint
            _report(context, period, piece.until)


async def _read_far_back(
    config: SlurmConfig, context: CollectorContext, checkpoint: Checkpoint, now: datetime, until: datetime
) -> AsyncGenerator[tuple[Batch, Checkpoint], None]:
    """The look far back, if one is under way: for jobs that reached the database very late, in whatever state."""
    if checkpoint.rescan_from is None:
        return
    waiting = Waiting(config, context.now(), await context.pending())
    period = Window(checkpoint.rescan_from, until)
    async with aclosing(_read_period(config, context, period, ())) as pieces:
        async for piece in pieces:
            if piece.until is not None:
                over = piece.until >= until
                checkpoint = structs.replace(checkpoint, rescan_from=None if over else piece.until)
                checkpoint = structs.replace(checkpoint, rescanned=now) if over else checkpoint
            batch = await classify_new(config, context, waiting.settle(piece.found), _remembered(config, context))
            yield replace(batch, pending=waiting.pending(piece.found)), checkpoint


async def _read_running(config: SlurmConfig, context: CollectorContext, now: datetime) -> AsyncGenerator[Batch, None]:
    # The steps of a running job are not asked for: what they measure is not final.
    asked = Query(Window(now - timedelta(seconds=1), now), tuple(RUNNING), steps=False)
    async with aclosing(stream_query(config, context, asked)) as tables:
        async for table in tables:
            yield await classify_new(config, context, find_runs(table, None), now + _OPEN_REMEMBERED)


def _remembered(config: JobsConfig, context: CollectorContext) -> datetime:
    """The instant until which a run that is found now may be found again, and must be known then."""
    return context.now() + config.memory + _MARGIN


def _report(context: CollectorContext, period: Window, read: datetime | None) -> None:
    if read is not None:
        context.report_progress((read - period.start) / (period.stop - period.start))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of a period's accounting; ``until`` the period has been read with it, None in the middle of a part."""

    found: Found
    until: datetime | None


async def _read_period(
    config: JobsConfig, context: CollectorContext, period: Window, states: Sequence[str]
) -> AsyncGenerator[_Piece, None]:
    """Read what ended within a period, the oldest part first; where a limit is met, go on with shorter parts.

    Nothing is read of an empty or reversed period; without states, jobs of all states are read, also of unknown ones.

    Raises:
        CommandFailed: sacct did not do what it should, and would not for a shorter part.
    """
    pace, start = _Pace(config.slice), period.start
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
    config: JobsConfig, context: CollectorContext, query: Query, pace: "_Pace"
) -> AsyncGenerator[_Piece, None]:
    """The pieces of a part; the last one, which ends it, only when the whole answer is there."""
    rows, last = 0, None
    async with aclosing(stream_query(config, context, query)) as tables:
        async for table in tables:
            if last is not None:
                yield _Piece(last, None)
            rows += len(table.rows)
            last = find_runs(table, query.window)
    pace.went_well(rows)
    yield _Piece(last or Found({}), query.window.stop)


class _Pace:
    """Chooses the next part's length, ``usual`` at first."""

    def __init__(self, usual: timedelta) -> None:
        self._usual = usual
        self._longest = max(usual, _LONGEST)
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


async def show_state(context: PanelContext) -> Sequence[PanelPart]:
    """The checkpoint and the last runs."""
    state = await context.state()
    if state is None:
        return ["It has not read anything yet."]
    checkpoint = restore(state, Checkpoint)
    rows = [
        ("Jobs that ended before are never looked at", checkpoint.earliest),
        ("Jobs that ended before are accounted for", checkpoint.until),
        ("Last look far back", checkpoint.rescanned),
    ]
    return [Table([Column("Position"), Column("Time")], rows), table_of_runs(await context.last_runs())]
