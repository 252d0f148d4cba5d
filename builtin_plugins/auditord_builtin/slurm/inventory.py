"""List the jobs of a period for audits, and ask Slurm's other programs about its settings."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from auditord_builtin.slurm.collecting import Checkpoint, collect_again
from auditord_builtin.slurm.config import JobsConfig, SlurmConfig
from auditord_builtin.slurm.query import ENVIRONMENT, Query, stream_query
from auditord_builtin.slurm.runs import RUNNING, find_runs
from auditord_hookspecs import (
    Batch,
    CollectorContext,
    CommandFailed,
    Context,
    InvalidRecord,
    Reach,
    Window,
)
from auditord_hookspecs.mapping import parse_time
from auditord_hookspecs.outcomes import restore

_PURGE: Final = re.compile(
    r"^\s*PurgeJobAfter\s*=\s*(?:NONE|(\d+)\s*(hours?|days?|months?))\*?\s*$", re.MULTILINE | re.IGNORECASE
)

_UNITS: Final = {"hour": timedelta(hours=1), "day": timedelta(days=1), "month": timedelta(days=28)}
"""The shortest length of each unit in slurmdbd.conf, so that purged jobs never count as extra records."""

_ALWAYS: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def list_jobs(config: JobsConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    """List the jobs that ended within the window, and count those that are still running.

    Raises:
        CommandFailed: sacct failed.
    """
    async with aclosing(collect_again(config, context)) as batches:
        async for batch in batches:
            yield batch
    if context.window is None:
        return
    now, running = context.now(), 0
    query = Query(Window(now - timedelta(seconds=1), now), tuple(RUNNING), steps=False)
    async with aclosing(stream_query(config, context, query)) as tables:
        async for table in tables:
            for run in find_runs(table, None).runs.values():
                with suppress(InvalidRecord):
                    start = parse_time(run.allocation["Start"])
                    running += start is not None and start < context.window.stop
    yield Batch(skipped={"still running": running})


async def reach(config: SlurmConfig, context: CollectorContext) -> Reach:
    """Return since when slurmdbd keeps jobs, and since when the collector reads them."""
    known = await source_reach(config, context)
    if context.checkpoint is None:
        return replace(known, collects=config.earliest_datetime or context.now())
    return replace(known, collects=restore(context.checkpoint, Checkpoint).earliest)


async def source_reach(config: JobsConfig, context: CollectorContext) -> Reach:
    """Return since when slurmdbd keeps jobs. If sacctmgr does not say, the first listed job decides."""
    found = _PURGE.search(await read_database_settings(config, context))
    if found is None:
        return Reach()
    if found[1] is None:
        return Reach(_ALWAYS)
    return Reach(context.now() - int(found[1]) * _UNITS[found[2].lower().removesuffix("s")])


async def read_database_settings(config: JobsConfig, context: Context) -> str:
    """Return sacctmgr's output about the configuration; empty if its path is unknown or it fails."""
    arguments = ("--noheader", "--parsable2", "show", "configuration")
    unknown = "cannot tell how long slurmdbd keeps jobs and who can see them"
    return await _ask_beside(config, context, "sacctmgr", arguments, unknown)


async def read_cluster_settings(config: JobsConfig, context: Context) -> str:
    """Return scontrol's output about the cluster's configuration; empty if its path is unknown or it fails."""
    return await _ask_beside(config, context, "scontrol", ("show", "config"), "cannot tell what Slurm measures")


async def _ask_beside(
    config: JobsConfig, context: Context, program: str, arguments: Sequence[str], unknown: str
) -> str:
    """Return the output of a program in sacct's folder, without sacct's options; empty if no word names sacct."""
    sacct = next((number for number, word in enumerate(config.sacct) if PurePosixPath(word).name == "sacct"), None)
    if sacct is None:
        return ""
    path = PurePosixPath(config.sacct[sacct]).with_name(program)
    try:
        result = await context.run_command(
            [*config.sacct[:sacct], str(path), *arguments],
            timeout=config.sacct_timeout,
            environment=ENVIRONMENT,
            through=config.through,
        )
    except CommandFailed as error:
        context.log.info("%s: %s", unknown, error)
        return ""
    return result.stdout.decode(errors="replace")
