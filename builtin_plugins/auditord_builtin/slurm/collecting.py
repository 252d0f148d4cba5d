"""Collect finished jobs with sacct."""

import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from anyio import to_thread
from msgspec import structs
from msgspec.structs import replace

from auditord_builtin.slurm.config import JobsConfig, SlurmConfig
from auditord_builtin.slurm.conversion import Converter
from auditord_builtin.slurm.query import Piece, Query, read_period, stream_query
from auditord_builtin.slurm.runs import RUNNING, Found, find_runs
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    Column,
    InvalidRecord,
    PanelContext,
    PanelPart,
    Table,
    Window,
)
from auditord_hookspecs.outcomes import Outcomes, restore
from auditord_hookspecs.panels import table_of_runs

JOBS_AT_ONCE: Final = 200
"""The number of job ids per call of sacct."""

_JOB_ID: Final = re.compile(r"[0-9]+(_[0-9]+|\+[0-9]+)?")

_EPOCH: Final = datetime(1970, 1, 2, tzinfo=UTC)  # not 0, which sacct treats as no start time

_MARGIN: Final = timedelta(days=1)

_JUMP: Final = timedelta(hours=1)
"""The time between two runs after which the clock is suspected to be ahead, unless ``overlap`` is longer."""

_OPEN_REMEMBERED: Final = timedelta(days=30)
"""The time for which a running job's open record is remembered. After that it is sent again, which is a no-op."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The position in a cluster's accounting, saved with each batch.

    Args:
        earliest: jobs that ended before this are never read; set by the first run.
        until: all jobs that ended before this and were known to the database are accounted for.
        rescanned: when the last rescan began. It has missed jobs that have reached the database since.
        rescan_from: the position of the current rescan; None if none is in progress.
        jumped_from: ``until`` before a long time passed between two runs; None once a job has ended after that. Until
            then, either the daemon was down, or the clock is ahead now.
    """

    earliest: datetime
    until: datetime
    rescanned: datetime
    rescan_from: datetime | None = None
    jumped_from: datetime | None = None

    def begin(self, config: SlurmConfig, now: datetime, until: datetime) -> "Checkpoint":
        """Start a rescan if one is due and none is in progress.

        It looks back from the previous one, but not further than runs are remembered (``config.memory``).

        A time in the future is from a clock that was ahead. Then a rescan is due, even if one is in progress; it starts
        at the earlier position. What ended since the clock went ahead is read again, however long ago that was.
        """
        was_ahead = max(self.until, self.rescanned, self.rescan_from or self.until) > now
        if was_ahead:
            known = structs.replace(self, until=self.jumped_from or self.until, jumped_from=None)
        elif self.jumped_from is None and until - self.until > max(config.overlap, _JUMP):
            known = structs.replace(self, jumped_from=self.until)
        else:
            known = self
        goes_on = self.rescan_from is not None or now - self.rescanned < config.rescan_every
        if not config.rescan_window or (goes_on and not was_ahead):
            return known
        previous = max(min(until, self.rescanned), until - config.rescan_every)
        start = max(previous - config.rescan_window, self.earliest)
        return structs.replace(known, rescanned=now, rescan_from=min(start, self.rescan_from or start))


def collect(config: SlurmConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    """Collect the jobs that ended since the last run, or collect given jobs or a window again.

    Raises:
        CommandFailed: sacct failed. The next run continues from the checkpoint.
    """
    if context.job is not None or context.window is not None:
        return collect_again(config, context)
    return _NewJobs(config, context).batches()


async def collect_again(config: JobsConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    """Collect the context's jobs, or those that ended within its window, again and without a checkpoint.

    Raises:
        AuditordError: the job ids are not valid.
        CommandFailed: sacct failed.
    """
    now, converter = context.now(), Converter(config)
    remember = now + config.memory + _MARGIN
    if (period := context.window) is not None:
        period = Window(period.start, min(period.stop, now - config.lag))  # the steps of later jobs may be unknown yet
        async with aclosing(read_period(config, context, period, config.sacct_states)) as pieces:
            async for piece in pieces:
                yield await account_for(converter, piece.found, remember)
                _report(context, period, piece)
        return
    job_id = "" if context.job is None else context.job.job_id
    jobs = job_id.split(",")
    if not all(map(_JOB_ID.fullmatch, jobs)):
        raise AuditordError(f"{job_id!r} is not a job id: write ids such as 42, 42_7 or 42+1, with commas")
    query = Query(Window(_EPOCH, now + timedelta(seconds=1)), (), config.reads_steps, jobs)
    async with aclosing(stream_query(config, context, query)) as tables:
        async for table in tables:
            yield await account_for(converter, find_runs(table, query.window), remember)


class _NewJobs:
    """Collects everything since the checkpoint. Jobs are remembered for as long as sacct may list them again."""

    def __init__(self, config: SlurmConfig, context: CollectorContext) -> None:
        self._config = config
        self._context = context
        self._converter = Converter(config)
        self._now = now = context.now().replace(microsecond=0)
        self._until = (now - config.lag).replace(microsecond=0)
        self._remember = now + config.memory + _MARGIN
        earliest = config.earliest_datetime or now
        self._is_first = context.checkpoint is None
        self._checkpoint: Checkpoint = (
            Checkpoint(earliest, earliest, now) if self._is_first else restore(context.checkpoint, Checkpoint)
        )

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield batches of new jobs, of the rescan if one is in progress, and of running jobs."""
        if self._is_first:  # save ``earliest`` even if the first run reads nothing
            yield self._at_checkpoint(Batch())
        self._checkpoint = self._checkpoint.begin(self._config, self._now, self._until)
        for read in (self._read_new, self._rescan, self._read_running):
            async with aclosing(read()) as batches:
                async for batch in batches:
                    yield batch

    async def _read_new(self) -> AsyncGenerator[Batch, None]:
        """Read from the previous ``until`` minus the overlap up to now minus the lag.

        If the previous ``until`` is in the future, the clock was ahead. Then ``until`` moves back, and the rescan finds
        the jobs that ended in the meantime. A job that has just ended shows that the clock is right.
        """
        config, context, known = self._config, self._context, self._checkpoint
        done = min(known.until, self._until)
        period = Window(max(done - config.overlap, known.earliest), self._until)
        async with aclosing(read_period(config, context, period, config.sacct_states)) as pieces:
            async for piece in pieces:
                recent = self._until - max(config.overlap, _JUMP)
                for run in piece.found.runs.values() if known.jumped_from is not None else ():
                    with suppress(InvalidRecord):  # the conversion reports it
                        if run.end is not None and run.end >= recent:
                            known = structs.replace(known, jumped_from=None)
                            break
                if piece.until is not None:
                    self._checkpoint = structs.replace(known, until=max(done, piece.until))
                yield self._at_checkpoint(await self._account_for(piece.found))
                _report(context, period, piece)

    async def _rescan(self) -> AsyncGenerator[Batch, None]:
        """Continue the rescan for jobs, in any state, that reached the database very late."""
        config, context, known = self._config, self._context, self._checkpoint
        if known.rescan_from is None:
            return
        waiting = Waiting(config, self._now, await context.pending())
        period = Window(known.rescan_from, self._until)
        async with aclosing(read_period(config, context, period, ())) as pieces:
            async for piece in pieces:
                if piece.until is not None and piece.until >= self._until:
                    self._checkpoint = structs.replace(known, rescan_from=None)
                elif piece.until is not None:
                    self._checkpoint = structs.replace(known, rescan_from=piece.until)
                batch = await self._account_for(waiting.settle(piece.found))
                yield self._at_checkpoint(replace(batch, pending=waiting.pending(piece.found)))

    async def _read_running(self) -> AsyncGenerator[Batch, None]:
        # Steps are not read, since the measurements of a running job are not final.
        if not self._config.open_records:
            return
        query = Query(Window(self._now - timedelta(seconds=1), self._now), tuple(RUNNING), steps=False)
        self._remember = self._now + _OPEN_REMEMBERED
        async with aclosing(stream_query(self._config, self._context, query)) as tables:
            async for table in tables:
                yield await self._account_for(find_runs(table, None))

    async def _account_for(self, found: Found) -> Batch:
        known = await self._context.find_seen([*found.runs, *found.quarantined])
        return await account_for(self._converter, found, self._remember, known)

    def _at_checkpoint(self, batch: Batch) -> Batch:
        return replace(batch, checkpoint=msgspec.to_builtins(self._checkpoint))


def _report(context: CollectorContext, period: Window, piece: Piece) -> None:
    if piece.until is not None:
        context.report_progress((piece.until - period.start) / (period.stop - period.start))


async def account_for(converter: Converter, found: Found, remember: datetime, known: Collection[str] = ()) -> Batch:
    """Return a batch, without a checkpoint, of the runs not in ``known``, which are remembered until ``remember``."""
    # In a thread, since a large table takes seconds, and the daemon must answer requests meanwhile.
    return await to_thread.run_sync(convert_all, converter, found, remember, known)


def convert_all(converter: Converter, found: Found, remember: datetime, known: Collection[str]) -> Batch:
    """Convert the runs whose keys are not in ``known``, which can take seconds; see :func:`account_for`."""
    outcomes = Outcomes()
    outcomes.quarantined += [each for key, each in found.quarantined.items() if key not in known]
    outcomes.left_out += converter.check_selection(found.runs.values())
    for key, run in found.runs.items():
        if key not in known:
            outcomes.add(converter.convert(run))
    outcomes.skipped["not over yet"] += found.unfinished
    outcomes.skipped["over, but its end is not known yet"] += len(found.endless)
    return outcomes.batch(seen=dict.fromkeys({*found.runs, *found.quarantined}.difference(known), remember))


class Waiting:
    """Ended runs whose end time the database does not know yet.

    After an outage of slurmdbd, slurmctld delivers all starts before the ends. Until then, sacct prints COMPLETED
    without an end (seen with Slurm 22.05). A run whose end never arrives is a runaway job, which an administrator has
    to fix. ``known`` maps each run to the time at which it was first seen, as ISO text (``context.pending``).
    """

    def __init__(self, config: SlurmConfig, now: datetime, known: Mapping[str, Any]) -> None:  # Any: JSON
        self._config = config
        self._now = now
        self._since = {key: datetime.fromisoformat(since) for key, since in known.items()}

    def settle(self, found: Found) -> Found:
        """Move runs that have waited longer than ``patience`` to the runs to account for."""
        due = {
            key: run
            for key, run in found.endless.items()
            if self._now - self._since.get(run.source_id, self._now) >= self._config.patience
        }
        endless = {key: run for key, run in found.endless.items() if key not in due}
        return replace(found, runs={**found.runs, **due}, endless=endless)

    def pending(self, found: Found) -> Mapping[str, str | None]:
        """Return the changes of ``context.pending``: new runs, and None for runs too old to be read again."""
        cutoff = self._now - self._config.memory - self._config.patience
        old = {key: None for key, since in self._since.items() if since < cutoff}
        new = {run.source_id for run in found.endless.values()} - self._since.keys()
        return {**old, **dict.fromkeys(new, self._now.isoformat())}


async def show_state(context: PanelContext) -> Sequence[PanelPart]:
    """Return the checkpoint and the collector's last runs."""
    state = await context.state()
    if state is None:
        return ["It has not read anything yet."]
    checkpoint = restore(state, Checkpoint)
    rows = [
        ("Ignores jobs that ended before", checkpoint.earliest),
        ("Has accounted for jobs that ended before", checkpoint.until),
        ("Last rescan", checkpoint.rescanned),
    ]
    return [Table([Column("Position"), Column("Time")], rows), table_of_runs(await context.last_runs())]
