"""The collector's run: schedd by schedd, each with a position of its own, so that one that fails stops no other."""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from auditord_builtin.htcondor.checkpoint import Checkpoint, Position
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.files import collect_files
from auditord_builtin.htcondor.judging import judge, wanted_again
from auditord_builtin.htcondor.per_job import collect_folder
from auditord_builtin.htcondor.query import Query, run_query
from auditord_builtin.htcondor.reading import Answer, read_all, read_new
from auditord_hookspecs import AuditordError, Batch, CollectorContext, CommandFailed, JobChoice, Window
from auditord_hookspecs.mapping import Row

_CHUNK: Final = 2_000
_JOB_ID: Final = re.compile(r"\d+(\.\d+)?")


async def collect(config: HTCondorConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Account for the jobs that left the queue since the last run, or ended within the window to collect again.

    Raises:
        CommandFailed: a schedd did not do what it should; the others were read, and it is asked again by the next run.
        AuditordError: the checkpoint or a history file cannot be read.
    """
    if config.history_paths:
        batches = collect_files(config, context)
    elif config.per_job_history_dir is not None:
        batches = collect_folder(config, context)
    else:
        batches = _collect_schedds(config, context)
    async for batch in batches:
        yield batch


async def _collect_schedds(config: HTCondorConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    checkpoint = Checkpoint.from_json(context.checkpoint)
    failures: list[str] = []
    schedds = _chosen(config, context.job)
    for number, schedd in enumerate(schedds, start=1):
        try:
            async for batch, moved in _collect_schedd(config, context, schedd, checkpoint):
                checkpoint = moved
                yield batch
        except CommandFailed as error:
            context.log.warning("%s: %s", schedd or "local history", error)
            failures.append(f"{schedd or 'local history'}: {error}")
        context.report_progress(number / len(schedds))
    if failures:
        raise CommandFailed(f"{len(failures)} of {len(schedds)} schedds: {'; '.join(failures)}")


async def _collect_schedd(
    config: HTCondorConfig, context: CollectorContext, schedd: str, checkpoint: Checkpoint
) -> AsyncIterator[tuple[Batch, Checkpoint]]:
    """The batches of one schedd, each with the checkpoint that holds after it.

    Raises:
        CommandFailed: it failed, or its answer may have a gap.
    """
    if context.job is not None:
        yield await _collect_job(config, context, schedd, context.job.job_id), checkpoint
        return
    if context.window is not None:
        async for batch in _collect_again(config, context, schedd, context.window):
            yield batch, checkpoint
        return
    position = checkpoint.schedds.get(schedd)
    if position is None:  # the first run fixes the beginning, even if nothing can be read yet
        position = Position(config.earliest_datetime or context.now())
        checkpoint = checkpoint.with_schedd(schedd, position)
        yield Batch(checkpoint=checkpoint.to_json()), checkpoint
    now = context.now()  # before the answer: what comes later is new to it
    answer = await read_new(config, context, schedd, position)
    if answer.replaced and not answer.doubt:
        context.log.warning(
            "%s: its history holds nothing that was read before: if it was rotated, jobs may be missing", schedd
        )
    async for batch in _judged(config, context, answer, answer.rows):
        yield batch, checkpoint
    if answer.doubt:
        raise CommandFailed(answer.doubt)
    checkpoint = checkpoint.with_schedd(schedd, position.after(answer.names, now))
    yield Batch(checkpoint=checkpoint.to_json()), checkpoint


def _chosen(config: HTCondorConfig, job: JobChoice | None) -> Sequence[str]:
    """The schedds to ask; the empty text is the local history."""
    schedds = config.schedd_names or ("",)
    if job is None:
        return schedds
    if not _JOB_ID.fullmatch(job.job_id):
        raise AuditordError(f"{job.job_id!r} is no job: write CLUSTER or CLUSTER.PROC, such as 42.0")
    if job.source is not None and job.source not in schedds:
        raise AuditordError(f"no schedd {job.source!r} is configured; there are: {', '.join(schedds) or 'none'}")
    return schedds if job.source is None else (job.source,)


async def _collect_job(config: HTCondorConfig, context: CollectorContext, schedd: str, job_id: str) -> Batch:
    printed = await run_query(config, context, Query(schedd, job=job_id))
    if not printed.rows:
        context.log.warning("%s: no job %s within the history that it looks through", schedd or "local history", job_id)
    return await judge(config, context, wanted_again(config, context, list(reversed(printed.rows))), printed.unreadable)


async def _collect_again(
    config: HTCondorConfig, context: CollectorContext, schedd: str, window: Window
) -> AsyncIterator[Batch]:
    answer = await read_all(config, context, schedd, window.start)
    async for batch in _judged(config, context, answer, wanted_again(config, context, answer.rows)):
        yield batch
    if answer.doubt:
        raise CommandFailed(answer.doubt)


async def _judged(
    config: HTCondorConfig, context: CollectorContext, answer: Answer, rows: Sequence[Row]
) -> AsyncIterator[Batch]:
    """Batches of the ads, the oldest first; none if there is nothing to say."""
    if answer.unreadable:
        yield await judge(config, context, (), answer.unreadable)
    for chunk in _chunks(list(reversed(rows))):
        yield await judge(config, context, chunk)


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    for start in range(0, len(rows), _CHUNK):
        yield rows[start : start + _CHUNK]
