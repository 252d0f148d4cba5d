"""The usage of each group, and its priority. Formulas and rounding are those of AUDITOR's plugin."""

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias

from auditord_builtin.priority.config import Mode, PriorityConfig
from auditord_hookspecs import AuditordError, PluginContext, Window, aggregates
from auditord_hookspecs.query import AllOf, Comparison, Condition, TimeCompares, TimeField

Log: TypeAlias = "logging.LoggerAdapter[logging.Logger]"

Usage: TypeAlias = Mapping[str, Fraction]
"""Amount x score x seconds for each configured group, in order; zero for a group without records."""


class StaleRecords(AuditordError):
    """The records are not up to date, so usage may be missing.

    Remedy:
        find out why no records arrive (`auditord status`); until then priorities do not change.
    """


async def look_up_usage(config: PriorityConfig, context: PluginContext) -> Usage:
    """Look up the usage of each configured group.

    Raises:
        StaleRecords: the records are too old.
        AuditordError: they cannot be read.
    """
    now = context.now()
    await _refuse_stale(config, context, now)
    return usage_in(config, await context.records.aggregate(question(config, now)), context.log)


async def _refuse_stale(config: PriorityConfig, context: PluginContext, now: datetime) -> None:
    if config.stale_after is None:
        return
    since = now - config.stale_after
    if not (await context.records.aggregate(aggregates.AggregateQuery(_stopped_between(since, now)))).groups:
        raise StaleRecords(
            f"no record stopped since {since.isoformat()}: a collector may be late. Priorities stay (see stale_after)"
        )


def question(config: PriorityConfig, now: datetime) -> aggregates.AggregateQuery:
    """Return the query for the sums."""
    product = config.component_combination == "product"
    overlap = config.window == "overlap"
    return aggregates.AggregateQuery(
        where=_condition(config, now),
        by=(aggregates.MetaValue(*config.group_keys), *(_factors(config.components) if product else ())),
        usage=() if product else _usages(config.components),
        window=Window(now - config.duration, now) if overlap and config.duration is not None else None,
        as_of=now if overlap else None,
    )


def _condition(config: PriorityConfig, now: datetime) -> Condition:
    if config.duration is None or config.window == "overlap":
        return AllOf()
    if config.window == "start":
        return TimeCompares(TimeField.START, Comparison.GTE, now - config.duration)
    return _stopped_between(now - config.duration, now)


def _stopped_between(since: datetime, now: datetime) -> Condition:
    """Return the condition. The end excludes a wrong clock's record, which would count in every run for years."""
    return AllOf(
        (TimeCompares(TimeField.STOP, Comparison.GTE, since), TimeCompares(TimeField.STOP, Comparison.LTE, now))
    )


def _usages(components: Mapping[str, str | None]) -> tuple[aggregates.ComponentUsage, ...]:
    return tuple(
        [aggregates.ComponentUsage(name, () if score is None else (score,)) for name, score in components.items()]
    )


def _factors(components: Mapping[str, str | None]) -> Sequence[aggregates.Dimension]:
    factors: list[aggregates.Dimension] = []
    for component, score in components.items():
        factors.append(aggregates.ComponentAmount(component))
        if score is not None:
            factors.append(aggregates.ScoreValue(component, score))
    return factors


def usage_in(config: PriorityConfig, answer: aggregates.Aggregates, log: Log) -> Usage:
    """Return the usage from the sums of :func:`question`. Components without a score count with 1, with a warning."""
    usage: defaultdict[str | None, Fraction] = defaultdict(Fraction)
    for group in answer.groups:
        name = group.key[0]
        usage[name if isinstance(name, str) else None] += _of_group(config, group, log) / answer.ticks_per_second
    if None in usage:
        log.warning("records without %s count for no group", " or ".join(config.group_keys))
    return {name: usage.get(name, Fraction()) for name in config.group_mapping}


def _of_group(config: PriorityConfig, group: aggregates.Group, log: Log) -> Fraction:
    if not config.components:
        return Fraction(group.runtime)
    if config.component_combination == "product":
        return _product(config, group, log)
    total = Fraction()
    for (component, score), used in zip(config.components.items(), group.usage, strict=True):
        if score is None:
            total += used.sums.amount_runtime
            continue
        unscored = used.scores[score].unscored
        total += Fraction(used.scores[score].amount_runtime) + unscored.amount_runtime
        if unscored.amount:
            _warn_unscored(log, group, component, score)
    return total


def _product(config: PriorityConfig, group: aggregates.Group, log: Log) -> Fraction:
    values = iter(group.key[1:])
    factors: list[Fraction] = []
    for component, score in config.components.items():
        amount, value = next(values), None if score is None else next(values)
        if isinstance(amount, int):
            if score is not None and value is None:
                _warn_unscored(log, group, component, score)
            factors.append(amount * (Fraction(value) if isinstance(value, Decimal) else Fraction(1)))
    product = Fraction(group.runtime if factors else 0)
    for factor in factors:
        product *= factor
    return product


def _warn_unscored(log: Log, group: aggregates.Group, component: str, score: str) -> None:
    log.warning("group %s: %s without the score %s counts with 1", group.key[0], component, score)


Targets: TypeAlias = Mapping[str, Fraction]
"""A priority for each group, not rounded."""

_HALF: Final = Fraction(1, 2)


def targets(usage: Usage, mode: Mode, low: int, high: int) -> Targets | None:
    """Return the priorities between the bounds, both included; None if no group has any usage.

    FullSpread: ``(v - least) / (most - least) * (high - low) + low``; all get ``high`` if they are equal. ScaledBySum:
    ``(high - low) / sum * v + low``.
    """
    if not any(usage.values()):
        return None
    spread = _full_spread if mode == "FullSpread" else _scaled_by_sum
    shares = spread(list(usage.values()))
    return {group: low + share * (high - low) for group, share in zip(usage, shares, strict=True)}


def smoothed(wanted: Targets, last: Mapping[str, Fraction], smoothing: float) -> Targets:
    """Move the last priorities towards the new ones. A new group gets its priority at once.

    The result is not rounded, or small steps would never have an effect.
    """
    kept = Fraction(repr(smoothing))
    return {
        group: target if group not in last else kept * last[group] + (1 - kept) * target
        for group, target in wanted.items()
    }


def rounded(value: Fraction) -> int:
    """Round to the nearest integer, half up."""
    return math.floor(value + _HALF)


def _full_spread(values: Sequence[Fraction]) -> Sequence[Fraction]:
    least, most = min(values), max(values)
    if least == most:
        return [Fraction(1)] * len(values)
    return [(value - least) / (most - least) for value in values]


def _scaled_by_sum(values: Sequence[Fraction]) -> Sequence[Fraction]:
    total = sum(values)
    return [value / total for value in values]
