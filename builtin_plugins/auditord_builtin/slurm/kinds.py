"""The kinds ``slurm`` and ``slurm_epilog`` and their checks for ``auditord doctor``."""

import os
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import timedelta
from operator import attrgetter
from typing import Final

from auditord_builtin.slurm import epilog
from auditord_builtin.slurm.collecting import JOBS_AT_ONCE, collect
from auditord_builtin.slurm.config import (
    JobsConfig,
    SlurmConfig,
    detect,
    detect_epilog,
    find_line_to_track_gpus,
    import_config,
    parse_settings,
)
from auditord_builtin.slurm.conversion import OWN_LABELS, convert, job_of
from auditord_builtin.slurm.demo import replay
from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig
from auditord_builtin.slurm.inventory import (
    list_jobs,
    reach,
    read_cluster_settings,
    read_database_settings,
    source_reach,
)
from auditord_builtin.slurm.query import ENVIRONMENT, Query, build_argv
from auditord_builtin.slurm.remarks import remark
from auditord_builtin.slurm.runs import RUNNING
from auditord_hookspecs import AuditordError, CollectorKind, CommandFailed, Context, Window
from auditord_hookspecs.checks import Finding, Severity, check_folder, check_program
from auditord_hookspecs.mapping import component_names, label_names
from auditord_hookspecs.vocabulary import OUTCOME

_REMEDY: Final = "install Slurm's client programs, or set their location: sacct, through"
_ACCOUNTING_REMEDY: Final = "is slurmdbd running, and can this user query it?"
_PRIVATE_DATA: Final = re.compile(r"^\s*PrivateData\s*=\s*(\S+)", re.MULTILINE)
_GATHERS: Final = re.compile(r"^\s*JobAcctGatherType\s*=\s*(\S+)", re.MULTILINE)
_GATHERS_NOTHING: Final = frozenset({"(null)", "none", "jobacct_gather/none"})
_SECOND: Final = timedelta(seconds=1)
_PATIENCE: Final = timedelta(seconds=60)
_LATE: Final = timedelta(days=1)


async def check_epilog(config: SlurmEpilogConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Check the folder of notes, scontrol and, if configured, sacct."""
    yield check_folder(config.spool, "create it as in auditord-slurm.tmpfiles, or set spool to its path")
    late, oldest = 0, (context.now() - _LATE).timestamp()
    with suppress(OSError), os.scandir(config.spool) as entries:
        late = sum(entry.stat(follow_symlinks=False).st_mtime < oldest for entry in entries)
    if late:
        text = f"{late} notes of jobs are older than a day. A note should be read within minutes"
        yield Finding(Severity.WARNING, str(config.spool), text, "see the log of this collector")
    yield await check_program(context, config.scontrol, through=config.through, remedy=_REMEDY)
    if config.sacct:
        async for finding in check(config, context):
            yield finding


async def check(config: JobsConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Check sacct, its columns, the accounting database, ``PrivateData``, and what Slurm measures and accounts for."""
    program = await check_program(
        context, config.sacct, through=config.through, environment=ENVIRONMENT, remedy=_REMEDY
    )
    yield program
    if program.severity is not Severity.OK:
        return
    yield await _check_columns(config, context)
    yield await _check_accounting(config, context)
    privacy = _PRIVATE_DATA.findall(await read_database_settings(config, context))
    if any("jobs" in line.lower().split(",") for line in privacy):  # hidden jobs look the same as no jobs
        text = "PrivateData=jobs: an ordinary user sees no jobs of others, and sacct does not say so"
        remedy = "make this user an operator: sacctmgr add user NAME account=root adminlevel=operator"
        yield Finding(Severity.WARNING, "privacy", text, f"{remedy} (unless it is one already)")
    elif privacy:
        yield Finding(Severity.OK, "privacy", "jobs are shown to every user")
    shown = await read_cluster_settings(config, context)
    if config.reads_steps and (gathers := _GATHERS.search(shown)) is not None:
        if gathers[1].lower() not in _GATHERS_NOTHING:
            yield Finding(Severity.OK, "measuring", f"jobs are measured ({gathers[1]})")
        else:  # sacct prints zeros
            text = f"JobAcctGatherType={gathers[1]}: Slurm measures neither CPU time nor memory of jobs, so records "
            remedy = "set JobAcctGatherType=jobacct_gather/cgroup (or linux) in slurm.conf"
            yield Finding(Severity.WARNING, "measuring", f"{text}lack them", remedy)
    wants_gpus = any((rule.sub_key or "").startswith("gres/gpu") for rule in config.components)
    # The jobs of a cluster that does not track its GPUs seem to have none.
    if wants_gpus and (line := find_line_to_track_gpus(parse_settings(shown))) is not None:
        text = "Slurm has GPUs (GresTypes), but does not account for them, so records have none"
        yield Finding(Severity.WARNING, "GPUs", text, f"set {line} in slurm.conf, and restart slurmctld")


async def _check_columns(config: JobsConfig, context: Context) -> Finding:
    argv = [*config.sacct, "--helpformat"]
    try:
        result = await context.run_command(argv, timeout=_PATIENCE, through=config.through)
    except CommandFailed as error:
        return Finding(Severity.WARNING, "columns", f"sacct does not list its columns: {error}", _ACCOUNTING_REMEDY)
    known = {word.lower() for word in result.stdout.decode(errors="replace").split()}
    unknown = [column for column in config.wanted_columns if column.lower() not in known]
    if unknown:
        text = f"this sacct has no column {', '.join(unknown)} and refuses every query"
        return Finding(Severity.FAILURE, "columns", text, "take them out of sites, meta, components and merge")
    return Finding(Severity.OK, "columns", f"sacct has all {len(config.wanted_columns)} of them")


async def _check_accounting(config: JobsConfig, context: Context) -> Finding:
    """Check that sacct answers a query for running jobs like the collector's."""
    now = context.now()
    argv: Sequence[str] = build_argv(config, Query(Window(now - _SECOND, now), tuple(RUNNING), steps=False), "|")
    try:
        result = await context.run_command(
            argv, timeout=config.sacct_timeout, environment=ENVIRONMENT, through=config.through
        )
    except AuditordError as error:
        return Finding(Severity.FAILURE, "accounting", str(error), _ACCOUNTING_REMEDY)
    complaint = result.stderr.decode(errors="replace").strip()
    if "error" in complaint.lower():  # some versions exit with 0 although they did not reach the database
        return Finding(Severity.FAILURE, "accounting", complaint[-400:], _ACCOUNTING_REMEDY)
    return Finding(Severity.OK, "accounting", "sacct answers a query of this collector")


SLURM: Final = CollectorKind(
    name="slurm",
    config=SlurmConfig,
    collect=collect,
    convert=convert,
    import_config=import_config,
    one_job=True,
    job_of=job_of,
    jobs_at_once=JOBS_AT_ONCE,
    prefix=attrgetter("record_prefix"),
    remarks=remark,
    provides=component_names,
    labels=lambda config: label_names(config.meta, (*OWN_LABELS, OUTCOME)),
    inventory=list_jobs,
    reach=reach,
    check=check,
    detect=detect,
    demo=replay,
    delay="lag",
)
SLURM_EPILOG: Final = CollectorKind(
    name="slurm_epilog",
    config=SlurmEpilogConfig,
    collect=epilog.collect,
    interval=timedelta(minutes=1),
    convert=epilog.convert,
    import_config=epilog.import_config,
    one_job=True,
    job_of=job_of,
    jobs_at_once=JOBS_AT_ONCE,
    prefix=attrgetter("record_prefix"),
    remarks=remark,
    provides=component_names,
    labels=lambda config: label_names(config.meta, (*OWN_LABELS, OUTCOME)),
    inventory=list_jobs,
    no_inventory=lambda config: None if config.sacct else "listing jobs needs sacct, but sacct is []",
    reach=source_reach,
    check=check_epilog,
    detect=detect_epilog,
    delay="lag",
)
