"""The kind ``htcondor``. Each schedd has its own position, so a failing schedd does not affect the others."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Final

from auditord_builtin.htcondor.ads import JobAd
from auditord_builtin.htcondor.choosing import classify, most_complete_first, select_ads
from auditord_builtin.htcondor.config import HTCondorConfig, detect, import_config, remarks
from auditord_builtin.htcondor.conversion import OWN_LABELS, convert, job_of
from auditord_builtin.htcondor.evaluation import Evaluator
from auditord_builtin.htcondor.history_files import collect_files
from auditord_builtin.htcondor.job_files import collect_folder
from auditord_builtin.htcondor.query import ENVIRONMENT, Query, Source, build_argv, run_query_around
from auditord_builtin.htcondor.reading import Answer, Checkpoint, Position, read_all, read_new
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    CollectorKind,
    CommandFailed,
    Context,
    Reach,
)
from auditord_hookspecs.checks import Finding, Severity, check_extra, check_folder, check_readable
from auditord_hookspecs.mapping import component_names, label_names
from auditord_hookspecs.outcomes import restore
from auditord_hookspecs.vocabulary import OUTCOME

_CHUNK: Final = 2_000
_PATIENCE: Final = timedelta(seconds=30)
_REMEDY: Final = "install HTCondor's programs, or set their location (condor_history, through), schedd_names and pool"
_JOB_ID: Final = re.compile(r"\d+(\.\d+)?")


async def collect(config: HTCondorConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Collect the jobs that left the queue since the last run, or collect a job or window again.

    Raises:
        CommandFailed: a schedd failed. The others were read, and the next run retries this one.
        AuditordError: the checkpoint or a history file cannot be read.
    """
    with Evaluator() as evaluator:
        source = Source(config, context, evaluator)
        if config.history_paths:
            batches = collect_files(source)
        elif config.per_job_history_dir is None:
            batches = _collect_schedds(source)
        else:
            batches = collect_folder(source)
        async for batch in batches:
            yield batch


async def _collect_schedds(source: Source) -> AsyncIterator[Batch]:
    config, context = source.config, source.context
    checkpoint = restore(context.checkpoint or {"schedds": {}}, Checkpoint)
    failures: list[str] = []
    schedds: Sequence[str] = config.schedd_names or ("",)  # an empty name stands for the local history
    if (job := context.job) is not None:
        if not _JOB_ID.fullmatch(job.job_id):
            raise AuditordError(f"{job.job_id!r} is not a job id: write CLUSTER or CLUSTER.PROC, such as 42.0")
        if job.source is not None and job.source not in schedds:
            raise AuditordError(f"no schedd {job.source!r} is configured; there are: {', '.join(schedds) or 'none'}")
        schedds = schedds if job.source is None else (job.source,)
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
    """Yield the batches of one schedd, each with the checkpoint after it.

    Raises:
        CommandFailed: the schedd failed, or its answer may have a gap.
    """
    config, context = source.config, source.context
    if context.job is not None:
        printed = await run_query_around(source, Query(schedd, job=context.job.job_id))
        yield await classify(source, select_ads(source, reversed(printed.ads)), printed.unreadable), checkpoint
        return
    if context.window is not None:
        answer = await read_all(source, schedd, context.window.start)
        async for batch in _classify_answer(source, answer, select_ads(source, answer.ads)):
            yield batch, checkpoint
        if answer.doubt:
            raise CommandFailed(answer.doubt)
        return
    position = checkpoint.schedds.get(schedd)
    if position is None:  # save ``earliest`` even if the first run reads nothing
        position = Position(config.earliest_datetime or context.now())
        checkpoint = checkpoint.with_schedd(schedd, position)
        yield checkpoint.batch(), checkpoint
    now = context.now()  # taken before the query, so that later ads count as new
    answer = await read_new(source, schedd, position)
    if answer.replaced and not answer.doubt:
        context.log.warning(
            "%s: its history contains no job that was read before: if it was rotated, jobs may be missing", schedd
        )
    async for batch in _classify_answer(source, answer, answer.ads):
        yield batch, checkpoint
    if answer.doubt:
        raise CommandFailed(answer.doubt)
    checkpoint = checkpoint.with_schedd(schedd, position.after(answer.names, now))
    yield checkpoint.batch(), checkpoint


async def _classify_answer(source: Source, answer: Answer, ads: Sequence[JobAd]) -> AsyncIterator[Batch]:
    if answer.unreadable:
        yield await classify(source, (), answer.unreadable)
    oldest_first = most_complete_first(source.config, list(reversed(ads)))
    for start in range(0, len(oldest_first), _CHUNK):
        yield await classify(source, oldest_first[start : start + _CHUNK])


def no_inventory(config: HTCondorConfig) -> str | None:
    """Return a text if ``per_job_history_dir`` is set. Its files are removed after reading, so they are no history."""
    if config.per_job_history_dir is None:
        return None
    return "per_job_history_dir holds only unread jobs, not a history: set history_paths"


async def reach(config: HTCondorConfig, context: CollectorContext) -> Reach:
    """Return since when the collector reads jobs. The first job of a history shows how far back the history goes."""
    if context.checkpoint is None:
        return Reach(collects=config.earliest_datetime or context.now())
    checkpoint = restore(context.checkpoint, Checkpoint)
    starts = [position.earliest for position in checkpoint.schedds.values()]
    return Reach(collects=min([*starts, *filter(None, [checkpoint.earliest])], default=None))


async def check(config: HTCondorConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Check condor_history, or the files that are read instead."""
    if config.per_job_history_dir is not None:
        yield check_folder(
            config.per_job_history_dir, "check that PER_JOB_HISTORY_DIR is set, and that this user owns the folder"
        )
    for path in config.history_paths:
        yield check_readable(path, "check HISTORY, and whether only HTCondor can read the file")
    if config.per_job_history_dir is not None or config.history_paths or config.output != "separated":
        yield check_extra("classad2", "htcondor")
    if config.per_job_history_dir is None and not config.history_paths:
        for schedd in config.schedd_names or ("",):  # condor_history cannot tell its version
            subject = f"{config.condor_history[0]} {schedd}".strip()
            argv = build_argv(config, Query(schedd, limit=1), ["-af", "GlobalJobId"])
            try:
                result = await context.run_command(
                    argv, timeout=_PATIENCE, environment=ENVIRONMENT, through=config.through
                )
            except CommandFailed as error:
                yield Finding(Severity.FAILURE, subject, str(error), _REMEDY)
                continue
            job = result.stdout.decode(errors="replace").strip()[:200]
            text = f"the newest job in the history is {job}" if job else "the history is empty"
            yield Finding(Severity.OK, subject, text)


HTCONDOR = CollectorKind(
    name="htcondor",
    config=HTCondorConfig,
    collect=collect,
    interval=timedelta(minutes=15),
    convert=convert,
    import_config=import_config,
    one_job=True,
    job_of=job_of,
    prefix=attrgetter("record_prefix"),
    remarks=remarks,
    provides=component_names,
    labels=lambda config: label_names(config.meta, (*config.site_labels, *OWN_LABELS, OUTCOME)),
    inventory=collect,
    no_inventory=no_inventory,
    reach=reach,
    check=check,
    detect=detect,
)
