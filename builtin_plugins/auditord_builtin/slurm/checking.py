"""Checks of Slurm's programs: whether they run, know the columns that rules name, and reach the accounting."""

import os
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from auditord_builtin.slurm.config import JobsConfig, SlurmConfig
from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig
from auditord_builtin.slurm.query import ENVIRONMENT, Query, build_argv, wanted_columns
from auditord_builtin.slurm.runs import RUNNING
from auditord_hookspecs import AuditordError, CommandFailed, Context, Window
from auditord_hookspecs.checks import Finding, Severity, check_folder, check_program

_REMEDY: Final = "install Slurm's client programs, or name where they are: sacct, through"
_SECOND: Final = timedelta(seconds=1)
_PATIENCE: Final = timedelta(seconds=60)
_LATE: Final = timedelta(days=1)


async def check(config: SlurmConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Look at sacct."""
    async for finding in _check_sacct(config, context):
        yield finding


async def check_epilog(config: SlurmEpilogConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Look at the folder of notes, scontrol and, where there is one, sacct."""
    yield check_folder(config.spool, "see auditord-slurm.tmpfiles, or name the folder as spool")
    if (late := _late_notes(config.spool, context.now().timestamp())) > 0:
        text = f"{late} notes of jobs are older than a day, the first of which should have been read within minutes"
        yield Finding(Severity.WARNING, str(config.spool), text, "see the log of this collector")
    yield await check_program(context, config.scontrol, through=config.through, remedy=_REMEDY)
    if config.sacct:
        async for finding in _check_sacct(config, context):
            yield finding


async def _check_sacct(config: JobsConfig, context: Context) -> AsyncGenerator[Finding, None]:
    program = await check_program(
        context, config.sacct, through=config.through, environment=ENVIRONMENT, remedy=_REMEDY
    )
    yield program
    if program.severity is not Severity.OK:
        return
    yield await _check_columns(config, context)
    yield await _check_accounting(config, context)


async def _check_columns(config: JobsConfig, context: Context) -> Finding:
    argv = [*config.sacct, "--helpformat"]
    try:
        result = await context.run_command(argv, timeout=_PATIENCE, through=config.through)
    except CommandFailed as error:
        return Finding(Severity.WARNING, "columns", f"sacct does not list its columns: {error}", _REMEDY)
    known = {word.lower() for word in result.stdout.decode(errors="replace").split()}
    unknown = [column for column in wanted_columns(config) if column.lower() not in known]
    if unknown:
        text = f"this sacct knows no column {', '.join(unknown)}, and refuses every query"
        return Finding(Severity.FAILURE, "columns", text, "take them out of sites, meta, components and merge")
    return Finding(Severity.OK, "columns", f"sacct knows all {len(wanted_columns(config))} of them")


async def _check_accounting(config: JobsConfig, context: Context) -> Finding:
    """Ask for the jobs that run, as the collector would; nothing of the answer is looked at."""
    now = context.now()
    argv: Sequence[str] = build_argv(config, Query(Window(now - _SECOND, now), tuple(RUNNING), steps=False), "|")
    try:
        result = await context.run_command(
            argv, timeout=config.sacct_timeout, environment=ENVIRONMENT, through=config.through
        )
    except AuditordError as error:
        return Finding(Severity.FAILURE, "accounting", str(error), "is slurmdbd running? may this user ask it?")
    complaint = result.stderr.decode(errors="replace").strip()
    if "error" in complaint.lower():  # some versions fail to reach the database with exit code 0
        return Finding(Severity.FAILURE, "accounting", complaint[-400:], "is slurmdbd running? may this user ask it?")
    return Finding(Severity.OK, "accounting", "sacct answers a query of this collector")


def _late_notes(folder: Path, now: float) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat(follow_symlinks=False).st_mtime < now - _LATE.total_seconds() for entry in entries)
    except OSError:
        return 0
