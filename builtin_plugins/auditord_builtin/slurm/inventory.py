"""The inventory of a cluster's accounting for audits: the jobs of a period as they would be collected again."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Final

from auditord_builtin.slurm.collecting import Checkpoint, collect_again
from auditord_builtin.slurm.config import JobsConfig, SlurmConfig
from auditord_builtin.slurm.query import ENVIRONMENT, Query, stream_query
from auditord_builtin.slurm.runs import RUNNING, Run, find_runs, has_no_time
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    CommandFailed,
    Context,
    InvalidRecord,
    Reach,
    Window,
)
from auditord_hookspecs.mapping import parse_instant
from auditord_hookspecs.outcomes import restore

_PURGE: Final = re.compile(
    r"^\s*PurgeJobAfter\s*=\s*(?:NONE|(\d+)\s*(hours?|days?|months?))\*?\s*$", re.MULTILINE | re.IGNORECASE
)
_UNITS: Final = {"hour": timedelta(hours=1), "day": timedelta(days=1), "month": timedelta(days=28)}
"""The shortest that a unit of slurmdbd.conf can be, so that no job counts as extra that may have been purged."""

_ALWAYS: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def list_jobs(config: JobsConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    """List what ended within the window, and count what still runs of it.

    Raises:
        AuditordError: there is no sacct to ask.
        CommandFailed: sacct did not do what it should.
    """
    if not config.sacct or context.window is None:
        raise AuditordError("only sacct can say which jobs there were, and the configuration says sacct: []")
    async with aclosing(collect_again(config, context)) as batches:
        async for batch in batches:
            yield batch
    yield Batch(skipped={"still running": await _still_running(config, context, context.window)})


async def _still_running(config: JobsConfig, context: CollectorContext, window: Window) -> int:
    now, count = context.now(), 0
    asked = Query(Window(now - timedelta(seconds=1), now), tuple(RUNNING), steps=False)
    async with aclosing(stream_query(config, context, asked)) as tables:
        async for table in tables:
            count += sum(_began_before(run, window.stop) for run in find_runs(table, None).runs.values())
    return count


def _began_before(run: Run, moment: datetime) -> bool:
    text = run.allocation["Start"]
    try:
        return not has_no_time(text) and parse_instant(text) < moment
    except InvalidRecord:
        return False


async def reach(config: SlurmConfig, context: CollectorContext) -> Reach:
    """Tell since when slurmdbd remembers jobs, and since when the collector was to read them."""
    known = await source_reach(config, context)
    if context.checkpoint is None:
        return replace(known, collects=config.earliest_datetime or context.now())
    return replace(known, collects=restore(context.checkpoint, Checkpoint).earliest)


async def source_reach(config: JobsConfig, context: CollectorContext) -> Reach:
    """Tell since when slurmdbd remembers jobs; where sacctmgr does not say, the first job that is listed tells."""
    found = _PURGE.search(await shown_configuration(config, context))
    if found is None:
        return Reach()
    if found[1] is None:
        return Reach(_ALWAYS)
    return Reach(context.now() - int(found[1]) * _UNITS[found[2].lower().removesuffix("s")])


async def shown_configuration(config: JobsConfig, context: Context) -> str:
    """The configuration that slurmctld and slurmdbd show; empty where sacctmgr is not known, or fails."""
    arguments = ("--noheader", "--parsable2", "show", "configuration")
    unknown = "how long slurmdbd keeps jobs, and whom it shows them to, is not known"
    return await _output_beside(config, context, "sacctmgr", arguments, unknown)


async def cluster_configuration(config: JobsConfig, context: Context) -> str:
    """The configuration of the cluster; empty where scontrol is not known, or fails."""
    return await _output_beside(config, context, "scontrol", ("show", "config"), "what Slurm measures is not known")


async def _output_beside(
    config: JobsConfig, context: Context, program: str, arguments: Sequence[str], unknown: str
) -> str:
    argv = _beside(config.sacct, program)
    if argv is None:
        return ""
    try:
        result = await context.run_command(
            [*argv, *arguments], timeout=config.sacct_timeout, environment=ENVIRONMENT, through=config.through
        )
    except CommandFailed as error:
        context.log.info("%s: %s", unknown, error)
        return ""
    return result.stdout.decode(errors="replace")


def _beside(sacct: Sequence[str], program: str) -> list[str] | None:
    """The call of a program beside sacct, as far as sacct is called by its name; its own options are left out."""
    for number, word in enumerate(sacct):
        if PurePosixPath(word).name == "sacct":
            return [*sacct[:number], str(PurePosixPath(word).with_name(program))]
    return None
