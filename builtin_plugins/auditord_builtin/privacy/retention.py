"""Plugin ``retention``: removes users' names from old records. Times, amounts, sites and groups stay."""

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
from auditord_hookspecs.config import PersonalKeys
from auditord_hookspecs.months import Month
from auditord_hookspecs.query import AllOf, AnyOf, Comparison, Condition, MetaLacks, TimeCompares, TimeField
from auditord_hookspecs.wording import counted

AT_ONCE: Final = 500
"""Records per transaction. Other writers wait until it ends."""


class RetentionConfig(PluginConfig):
    """Removes users' names from records some months after the jobs ended."""

    months: int = Field(
        ge=1, le=1200, description="Names are removed this many months after the month in which a job ended."
    )
    meta: PersonalKeys = Field(
        default=(), description="The labels to remove from records; default: that of labels.user, user_id and user."
    )


async def forget(config: RetentionConfig, context: PluginContext) -> None:
    """Remove the names from old records, oldest first.

    No progress is saved, but redacted records no longer match, so the next run continues where a killed one stopped.
    """
    redactor, before, names = context.redactor, cutoff(context.now(), config.months), ", ".join(config.meta)
    if context.dry_run:
        query = AggregateQuery(_matching(config, before), (CalendarPeriod(CalendarUnit.YEAR),))
        groups = (await context.records.aggregate(query)).groups
        for group in groups:
            context.show(f"{group.key[0]:%Y}: {counted(group.records, 'record')} would lose {names}")
        if not groups:
            context.show(f"no record that ended before {before:%Y-%m-%d} has any of {names}")
        return
    changed = 0
    since: datetime | None = None
    while True:  # each batch is a separate query, so that no query stays open for long
        where = _matching(config, before, since)
        async with context.records.stream(RecordQuery(where, limit=AT_ONCE, released=True)) as records:
            found = [record async for record in records]
        if not found:
            break
        changed += await redactor.redact([record.record_id for record in found], config.meta)
        since = found[-1].stop_time
    left = await redactor.redact_leftovers(before, config.meta)
    if changed or left:
        context.log.info("removed %s from %s and %s", names, counted(changed, "record"), counted(left, "leftover"))


def cutoff(now: datetime, months: int) -> datetime:
    """Return the start of the month that lies ``months`` before the current one."""
    return Month.of(now).plus(-months).start


def _matching(config: RetentionConfig, before: datetime, since: datetime | None = None) -> Condition:
    ended: tuple[Condition, ...] = (TimeCompares(TimeField.STOP, Comparison.LT, before),)
    if since is not None:  # skip the records of earlier batches
        ended = (*ended, TimeCompares(TimeField.STOP, Comparison.GTE, since))
    # Matches every record that has the key: values are never empty, so each list of values lacks "".
    return AllOf((*ended, AnyOf(tuple(MetaLacks(key, "") for key in config.meta))))


KIND: Final = PluginKind(
    name="retention",
    config=RetentionConfig,
    run=forget,
    interval=timedelta(days=1),
    effect=lambda config: f"removes {', '.join(config.meta)} after {counted(config.months, 'month')}",
)
