"""A period of accounting, read part by part and piece by piece: memory holds one piece, whatever a part holds."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from auditord_builtin.slurm.classifying import Found, find_runs
from auditord_builtin.slurm.config import JobsConfig
from auditord_builtin.slurm.pace import Pace
from auditord_builtin.slurm.query import Query, stream_query
from auditord_builtin.slurm.table import Table
from auditord_hookspecs import Batch, CollectorContext, CommandFailed, Window

Ask: TypeAlias = Callable[[JobsConfig, Window], Query]
Classify: TypeAlias = Callable[[Found], Awaitable[Batch]]


@dataclass(frozen=True, slots=True)
class Read:
    """A batch of a period.

    Args:
        batch: what was found, without a checkpoint.
        until: up to where the period has been read with it; None in the middle of a part.
    """

    batch: Batch
    until: datetime | None


async def read_period(
    config: JobsConfig, context: CollectorContext, period: Window, ask: Ask, classify: Classify
) -> AsyncGenerator[Read, None]:
    """Read what ended within a period, the oldest part first; where a limit is met, go on with shorter parts.

    Args:
        config: the collector's options.
        context: its context.
        period: as a whole; nothing is read of an empty or reversed one.
        ask: makes the query for a part.
        classify: makes a batch of what a piece holds.

    Raises:
        CommandFailed: sacct did not do what it should, and would not for a shorter part.
    """
    pace, start = Pace(config.slice), period.start
    while start < period.stop:
        part = Window(start, min(start + pace.length, period.stop))
        try:
            async with aclosing(
                _read_part(stream_query(config, context, ask(config, part)), part, classify, pace)
            ) as pieces:
                async for read in pieces:
                    yield read
        except CommandFailed as error:
            pace.failed(part, error)
            context.log.warning("%s; from %s on sacct is asked for %s at a time", error, part.start, pace.length)
        else:
            start = part.stop


async def _read_part(
    answer: AsyncGenerator[Table, None], part: Window, classify: Classify, pace: Pace
) -> AsyncGenerator[Read, None]:
    rows, last = 0, Batch()
    async with aclosing(answer) as tables:
        async for table in tables:
            if rows:
                yield Read(last, None)
            rows += len(table.rows)
            last = await classify(find_runs(table, part))
    pace.went_well(rows)
    yield Read(last, part.stop)
