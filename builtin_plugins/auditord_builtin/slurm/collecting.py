"""The collector's run: parts of accounting, of which the last batch moves the checkpoint."""

import re
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from anyio import to_thread

from auditord_builtin.slurm.checkpoint import Checkpoint
from auditord_builtin.slurm.classifying import Found, classify_runs, find_runs
from auditord_builtin.slurm.config import JobsConfig, SlurmConfig
from auditord_builtin.slurm.merge import reads_steps
from auditord_builtin.slurm.query import Query, ended_jobs, jobs_of_all_states, running_jobs, stream_query
from auditord_builtin.slurm.reading import Read, read_period
from auditord_builtin.slurm.waiting import Waiting
from auditord_hookspecs import AuditordError, Batch, CollectorContext, JobChoice, Window

JOBS_AT_ONCE = 200
"""Jobs that sacct is asked for by their ids at a time."""

_JOB_ID = re.compile(r"[0-9]+(_[0-9]+|\+[0-9]+)?")
_EPOCH = datetime(1970, 1, 2, tzinfo=UTC)  # a start of 0 would mean none to sacct
_MARGIN = timedelta(days=1)
_OPEN_REMEMBERED = timedelta(days=30)
"""How long it is known that a running job has its open record; after that it is sent again, which changes nothing."""


async def collect(config: SlurmConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    """Account for the jobs that ended since the last run, or within the window that is to be collected again.

    Raises:
        CommandFailed: sacct did not do what it should; what was not read is read by the next run.
    """
    if context.job is not None:
        batches = collect_jobs(config, context, context.job)
    else:
        batches = _collect_new(config, context) if context.window is None else collect_again(config, context)
    async with aclosing(batches):
        async for batch in batches:
            yield batch


async def collect_again(config: JobsConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    """Account for the jobs that ended within the context's window, whether it has been seen or not; no checkpoint.

    Raises:
        CommandFailed: sacct did not do what it should.
    """
    period = context.window
    if period is None:
        return

    async def classify_all(found: Found) -> Batch:
        return await classify(config, context, found, (), _remembered(config, context))

    async with aclosing(read_period(config, context, period, ended_jobs, classify_all)) as pieces:
        async for read in pieces:
            yield read.batch
            if read.until is not None:
                context.report_progress((read.until - period.start) / (period.stop - period.start))


async def collect_jobs(config: JobsConfig, context: CollectorContext, choice: JobChoice) -> AsyncGenerator[Batch, None]:
    """Account for all finished runs of jobs, separated by commas, whether they have been seen or not; no checkpoint.

    Raises:
        AuditordError: these are no ids of jobs.
        CommandFailed: sacct did not do what it should.
    """
    jobs = choice.job_id.split(",")
    if not all(map(_JOB_ID.fullmatch, jobs)):
        raise AuditordError(f"{choice.job_id!r} is no job: write its id, such as 42, 42_7 or 42+1; several with commas")
    ever = Window(_EPOCH, context.now() + timedelta(seconds=1))
    async with aclosing(stream_query(config, context, Query(ever, (), reads_steps(config), jobs))) as tables:
        async for table in tables:
            yield await classify(config, context, find_runs(table, ever), (), _remembered(config, context))


async def _collect_new(config: SlurmConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    now = context.now().replace(microsecond=0)
    until = (now - config.lag).replace(microsecond=0)
    stored = context.checkpoint
    checkpoint = Checkpoint.first(config, now) if stored is None else Checkpoint.from_json(stored)
    if stored is None:  # the first run fixes the beginning, even if nothing can be read yet
        yield Batch(checkpoint=checkpoint.to_json())
    checkpoint = checkpoint.begin(config, now, until)
    new, far_back = checkpoint.new(config, until), checkpoint.far_back(until)
    async with aclosing(_read_new(config, context, new)) as pieces:
        async for read in pieces:
            checkpoint = checkpoint.after_new(read.until)
            yield replace(read.batch, checkpoint=checkpoint.to_json())
    async with aclosing(_read_far_back(config, context, far_back)) as pieces:
        async for read in pieces:
            checkpoint = checkpoint.after_far_back(read.until, now, until)
            yield replace(read.batch, checkpoint=checkpoint.to_json())
    if config.open_records:
        async with aclosing(_read_running(config, context, now)) as batches:
            async for batch in batches:
                yield batch
    context.report_progress(1.0)


async def _read_new(config: SlurmConfig, context: CollectorContext, period: Window) -> AsyncGenerator[Read, None]:
    async def classify_new(found: Found) -> Batch:
        return await _classify(config, context, found, _remembered(config, context))

    async with aclosing(read_period(config, context, period, ended_jobs, classify_new)) as pieces:
        async for read in pieces:
            yield read
            if read.until is not None:
                context.report_progress((read.until - period.start) / (period.stop - period.start))


async def _read_far_back(config: SlurmConfig, context: CollectorContext, period: Window) -> AsyncGenerator[Read, None]:
    if period.start == period.stop:
        return
    waiting = Waiting(config, context.now(), await context.pending())

    async def classify_late(found: Found) -> Batch:
        batch = await _classify(config, context, waiting.settle(found), _remembered(config, context))
        return replace(batch, pending=waiting.of(found))

    async with aclosing(read_period(config, context, period, jobs_of_all_states, classify_late)) as pieces:
        async for read in pieces:
            yield read


async def _read_running(config: SlurmConfig, context: CollectorContext, now: datetime) -> AsyncGenerator[Batch, None]:
    query = running_jobs(Window(now - timedelta(seconds=1), now))
    async with aclosing(stream_query(config, context, query)) as tables:
        async for table in tables:
            yield await _classify(config, context, find_runs(table, None), now + _OPEN_REMEMBERED)


def _remembered(config: JobsConfig, context: CollectorContext) -> datetime:
    """Until when a run that is found now may be found again, and must be known then."""
    return context.now() + config.memory + _MARGIN


async def _classify(config: JobsConfig, context: CollectorContext, found: Found, remember: datetime) -> Batch:
    known = await context.seen([*found.runs, *found.quarantined])
    return await classify(config, context, found, known, remember)


async def classify(
    config: JobsConfig, context: CollectorContext, found: Found, known: Collection[str], remember: datetime
) -> Batch:
    """A batch of what is not known yet, without a checkpoint; labels that were left out are told to the log."""
    # In a thread: a page of a large cluster takes seconds, in which the daemon has requests to answer.
    batch, remarks = await to_thread.run_sync(classify_runs, config, found, known, remember)
    if remarks:  # one line and not one per job: users write comments
        context.log.warning("labels left out: %d, such as %s", len(remarks), remarks[0])
    return batch
