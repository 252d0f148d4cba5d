"""The collector's run: pages of accounting, each a batch that moves the checkpoint."""

from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from datetime import datetime, timedelta

from anyio import to_thread

from auditord_builtin.slurm.checkpoint import Checkpoint, Page, slices
from auditord_builtin.slurm.config import JobsConfig, SlurmConfig
from auditord_builtin.slurm.judging import Found, find_runs, judge_runs
from auditord_builtin.slurm.query import ended_jobs, jobs_of_all_states, run_query, running_jobs
from auditord_hookspecs import Batch, CollectorContext, Window

_MARGIN = timedelta(days=1)
_OPEN_REMEMBERED = timedelta(days=30)
"""How long it is known that a running job has its open record; after that it is sent again, which changes nothing."""


async def collect(config: SlurmConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Account for the jobs that ended since the last run, or within the window that is to be collected again.

    Raises:
        CommandFailed: sacct did not do what it should; what was not read is read by the next run.
    """
    batches = _collect_new(config, context) if context.window is None else collect_again(config, context)
    async for batch in batches:
        yield batch


async def collect_again(config: JobsConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Account for the jobs that ended within the context's window, whether it has been seen or not; no checkpoint.

    Raises:
        CommandFailed: sacct did not do what it should.
    """
    period = context.window
    todo = [] if period is None else list(slices(period, config.slice))
    for number, window in enumerate(todo, start=1):
        yield await _read(config, context, Page(window), again=True)
        context.report_progress(number / len(todo))


async def _collect_new(config: SlurmConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    now = context.now().replace(microsecond=0)
    until = (now - config.lag).replace(microsecond=0)
    stored = context.checkpoint
    checkpoint = Checkpoint.first(config, now) if stored is None else Checkpoint.from_json(stored)
    if stored is None:  # the first run fixes the beginning, even if nothing can be read yet
        yield Batch(checkpoint=checkpoint.to_json())
    checkpoint = checkpoint.begin(config, now, until)
    plan = checkpoint.plan(config, until)
    for number, page in enumerate(plan, start=1):
        batch = await _read(config, context, page, again=False)
        checkpoint = checkpoint.after(page, now, until)
        yield replace(batch, checkpoint=checkpoint.to_json())
        context.report_progress(number / len(plan))
    if config.open_records:
        yield await _read_running(config, context, now)


async def _read(config: JobsConfig, context: CollectorContext, page: Page, *, again: bool) -> Batch:
    query = jobs_of_all_states(config, page.window) if page.deep else ended_jobs(config, page.window)
    found = find_runs(await run_query(config, context, query), page.window)
    return await _judge(config, context, found, context.now() + config.memory + _MARGIN, again=again)


async def _read_running(config: SlurmConfig, context: CollectorContext, now: datetime) -> Batch:
    query = running_jobs(Window(now - timedelta(seconds=1), now))
    found = find_runs(await run_query(config, context, query), None)
    return await _judge(config, context, found, now + _OPEN_REMEMBERED, again=False)


async def _judge(
    config: JobsConfig, context: CollectorContext, found: Found, remember: datetime, *, again: bool
) -> Batch:
    known = frozenset[str]() if again else await context.seen([*found.runs, *found.quarantined])
    return await judge(config, context, found, known, remember)


async def judge(
    config: JobsConfig, context: CollectorContext, found: Found, known: Collection[str], remember: datetime
) -> Batch:
    """A batch of what is not known yet, without a checkpoint; labels that were left out are told to the log."""
    # In a thread: a page of a large cluster takes seconds, in which the daemon has requests to answer.
    batch, remarks = await to_thread.run_sync(judge_runs, config, found, known, remember)
    if remarks:  # one line and not one per job: users write comments
        context.log.warning("labels left out: %d, such as %s", len(remarks), remarks[0])
    return batch
