"""The collector's run: schedd by schedd, each with a position of its own, so that one that fails stops no other."""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Final

from auditord_builtin.htcondor.ads import JobAd
from auditord_builtin.htcondor.classifying import classify, most_complete_first, wanted_again
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.evaluation import Evaluator
from auditord_builtin.htcondor.files import collect_files
from auditord_builtin.htcondor.isolating import run_query_around
from auditord_builtin.htcondor.per_job import collect_folder
from auditord_builtin.htcondor.query import Query, Source
from auditord_builtin.htcondor.reading import Answer, Checkpoint, Position, read_all, read_new
from auditord_hookspecs import AuditordError, Batch, CollectorContext, CommandFailed, JobChoice
from auditord_hookspecs.outcomes import restore

_CHUNK: Final = 2_000
_JOB_ID: Final = re.compile(r"\d+(\.\d+)?")


async def collect(config: HTCondorConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Account for the jobs that left the queue since the last run, or ended within the window to collect again.

    Raises:
        CommandFailed: a schedd did not do what it should; the others were read, and it is asked again by the next run.
        AuditordError: the checkpoint or a history file cannot be read.
    """
    with Evaluator() as evaluator:
        async for batch in _batches(Source(config, context, evaluator)):
            yield batch


def _batches(source: Source) -> AsyncIterator[Batch]:
    if source.config.history_paths:
        return collect_files(source)
    return _collect_schedds(source) if source.config.per_job_history_dir is None else collect_folder(source)


async def _collect_schedds(source: Source) -> AsyncIterator[Batch]:
    config, context = source.config, source.context
    checkpoint = restore(context.checkpoint or {"schedds": {}}, Checkpoint)
    failures: list[str] = []
    schedds = _chosen(config, context.job)
    for number, schedd in enumerate(schedds, start=1):
        try:
            async for batch, moved in _collect_schedd(source, schedd, checkpoint):
                checkpoint = moved
                yield batch
        except CommandFailed as error:
            context.log.warning("%s: %s", schedd or "local history", error)
            failures.append(f"{schedd or 'local history'}: {error}")
        context.report_progress(number / len(schedds))
    if failures:
        raise CommandFailed(f"{len(failures)} of {len(schedds)} schedds: {'; '.join(failures)}")


async def _collect_schedd(
    source: Source, schedd: str, checkpoint: Checkpoint
) -> AsyncIterator[tuple[Batch, Checkpoint]]:
    """The batches of one schedd, each with the checkpoint that holds after it.

    Raises:
        CommandFailed: it failed, or its answer may have a gap.
    """
    config, context = source.config, source.context
    if context.job is not None:
        printed = await run_query_around(source, Query(schedd, job=context.job.job_id))
        yield await classify(source, wanted_again(source, reversed(printed.ads)), printed.unreadable), checkpoint
        return
    if context.window is not None:
        answer = await read_all(source, schedd, context.window.start)
        async for batch in _classified(source, answer, wanted_again(source, answer.ads)):
            yield batch, checkpoint
        if answer.doubt:
            raise CommandFailed(answer.doubt)
        return
    position = checkpoint.schedds.get(schedd)
    if position is None:  # the first run fixes the beginning, even if nothing can be read yet
        position = Position(config.earliest_datetime or context.now())
        checkpoint = checkpoint.with_schedd(schedd, position)
        yield checkpoint.batch(), checkpoint
    now = context.now()  # before the answer: what comes later is new to it
    answer = await read_new(source, schedd, position)
    if answer.replaced and not answer.doubt:
        context.log.warning(
            "%s: its history holds nothing that was read before: if it was rotated, jobs may be missing", schedd
        )
    async for batch in _classified(source, answer, answer.ads):
        yield batch, checkpoint
    if answer.doubt:
        raise CommandFailed(answer.doubt)
    checkpoint = checkpoint.with_schedd(schedd, position.after(answer.names, now))
    yield checkpoint.batch(), checkpoint


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


async def _classified(source: Source, answer: Answer, ads: Sequence[JobAd]) -> AsyncIterator[Batch]:
    """Batches of the ads, the oldest first; none if there is nothing to say."""
    if answer.unreadable:
        yield await classify(source, (), answer.unreadable)
    oldest_first = most_complete_first(source.config, list(reversed(ads)))
    for start in range(0, len(oldest_first), _CHUNK):
        yield await classify(source, oldest_first[start : start + _CHUNK])
