"""Plugin ``retention``: takes users' names out of old records; times, amounts, sites and groups stay."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Final

from pydantic import Field

from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    PluginConfig,
    PluginContext,
    PluginKind,
    RecordQuery,
)
from auditord_hookspecs.months import Month
from auditord_hookspecs.query import AllOf, AnyOf, Comparison, Condition, MetaLacks, TimeCompares, TimeField
from auditord_hookspecs.wording import counted

AT_ONCE: Final = 500
"""Records per transaction: writers wait for its end."""


class RetentionConfig(PluginConfig):
    """Forgets the users of jobs some months after they ended."""

    months: int = Field(
        ge=1, le=1200, description="Names are removed this many months after the month in which a job ended."
    )
    meta: tuple[str, ...] = Field(
        default=("user_id", "user"), min_length=1, description="The meta keys to remove from records."
    )


async def forget(config: RetentionConfig, context: PluginContext) -> None:
    """Remove the names from old records, the oldest first.

    The progress is not saved: done records are not found again, so the next run continues after a killed one.
    """
    redactor, before = context.redactor, cutoff(context.now(), config.months)
    if context.dry_run:
        await _show(config, context, before)
        return
    changed = 0
    async for ids in _old(config, context, before):
        changed += await redactor.redact(ids, config.meta)
    left = await redactor.redact_leftovers(before, config.meta)
    if changed or left:
        names = ", ".join(config.meta)
        context.log.info("removed %s from %s and %s", names, counted(changed, "record"), counted(left, "leftover"))


def cutoff(now: datetime, months: int) -> datetime:
    """Return the first instant of the month that is this many months before the current one."""
    return Month.of(now).plus(-months).start


async def _old(config: RetentionConfig, context: PluginContext, before: datetime) -> AsyncIterator[list[str]]:
    """Yield ids in portions. Each portion is a query of its own, so that no query stays open for long."""
    since: datetime | None = None
    while True:
        where = _matching(config, before, since)
        async with context.records.stream(RecordQuery(where, limit=AT_ONCE, archived=True)) as records:
            found = [record async for record in records]
        if not found:
            return
        yield [record.record_id for record in found]
        since = found[-1].stop_time


def _matching(config: RetentionConfig, before: datetime, since: datetime | None = None) -> Condition:
    ended: tuple[Condition, ...] = (TimeCompares(TimeField.STOP, Comparison.LT, before),)
    if since is not None:  # earlier records are done; skip them
        ended = (*ended, TimeCompares(TimeField.STOP, Comparison.GTE, since))
    # No value is empty, so every list lacks the empty text.
    return AllOf((*ended, AnyOf(tuple(MetaLacks(key, "") for key in config.meta))))


async def _show(config: RetentionConfig, context: PluginContext, before: datetime) -> None:
    query = AggregateQuery(_matching(config, before), (CalendarPeriod(CalendarUnit.YEAR),))
    groups = (await context.records.aggregate(query)).groups
    for group in groups:
        context.show(f"{group.key[0]:%Y}: {counted(group.records, 'record')} would lose {', '.join(config.meta)}")
    if not groups:
        context.show(f"no record that ended before {before:%Y-%m-%d} has any of {', '.join(config.meta)}")


KIND: Final = PluginKind(name="retention", config=RetentionConfig, run=forget, interval=timedelta(days=1))
