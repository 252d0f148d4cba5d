"""The declaration of the kind ``htcondor``: what it is, what is asked of it for audits and by ``auditord doctor``."""

from collections.abc import AsyncGenerator, AsyncIterator
from datetime import timedelta

from auditord_builtin.htcondor.collecting import collect
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import convert, job_of
from auditord_builtin.htcondor.detecting import detect
from auditord_builtin.htcondor.importing import import_config
from auditord_builtin.htcondor.query import ENVIRONMENT
from auditord_builtin.htcondor.reading import Checkpoint
from auditord_hookspecs import AuditordError, Batch, CollectorContext, CollectorKind, Context, Reach
from auditord_hookspecs.checks import Finding, check_extra, check_folder, check_program, check_readable
from auditord_hookspecs.mapping import remarks_on_sites
from auditord_hookspecs.outcomes import restore


def list_jobs(config: HTCondorConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """List the jobs of the window as they are collected again.

    Raises:
        AuditordError: files of single jobs are removed once they are read, and so no history.
    """
    if config.per_job_history_dir is not None:
        raise AuditordError("per_job_history_dir holds what is not read yet, and no history: name history_paths")
    return collect(config, context)


async def reach(config: HTCondorConfig, context: CollectorContext) -> Reach:
    """Tell since when the collector was to read jobs; how far histories go back shows in their first job."""
    if context.checkpoint is None:
        return Reach(collects=config.earliest_datetime or context.now())
    checkpoint = restore(context.checkpoint, Checkpoint)
    begun = [position.earliest for position in checkpoint.schedds.values()]
    return Reach(collects=min([*begun, *filter(None, [checkpoint.earliest])], default=None))


async def check(config: HTCondorConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Look at condor_history, or at the files that are read instead."""
    if config.per_job_history_dir is not None:
        yield check_folder(config.per_job_history_dir, "is PER_JOB_HISTORY_DIR set, and does this user own the folder?")
    for path in config.history_paths:
        yield check_readable(path, "is HISTORY another file, or readable by HTCondor alone?")
    if config.per_job_history_dir is not None or config.history_paths or config.output != "separated":
        yield check_extra("classad2", "htcondor")
    if config.per_job_history_dir is None and not config.history_paths:
        remedy = "install HTCondor's programs, or name where they are: condor_history, through"
        yield await check_program(
            context,
            config.condor_history,
            option="-version",
            through=config.through,
            environment=ENVIRONMENT,
            remedy=remedy,
        )


HTCONDOR = CollectorKind(
    name="htcondor",
    config=HTCondorConfig,
    collect=collect,
    interval=timedelta(minutes=15),
    timeout=timedelta(hours=1),
    convert=convert,
    import_config=import_config,
    one_job=True,
    job_of=job_of,
    prefix=lambda config: config.record_prefix,
    remarks=lambda config: remarks_on_sites(config.sites),
    inventory=list_jobs,
    reach=reach,
    check=check,
    detect=detect,
)
"""The history is asked every quarter of an hour; one job can be asked for by its id."""
