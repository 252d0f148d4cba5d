"""The plugin kind ``priority``: compute priorities from usage, and run the commands that set them.

Formulas and rounding are those of AUDITOR's plugin. For the panel, the state keeps the priorities of each run for a few
days, and the last priorities of each day for a year.
"""

import logging
import math
import re
import shlex
import shutil
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias

import msgspec

from auditord_builtin.priority import metrics
from auditord_builtin.priority.config import Mode, PriorityConfig, import_config
from auditord_hookspecs import (
    AuditordError,
    Chart,
    Column,
    CommandFailed,
    Context,
    PanelContext,
    PanelPart,
    PluginContext,
    PluginKind,
    Series,
    Table,
    Window,
    aggregates,
)
from auditord_hookspecs.arguments import show_command
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.query import AllOf, Comparison, Condition, TimeCompares, TimeField
from auditord_hookspecs.wording import counted

Log: TypeAlias = "logging.LoggerAdapter[logging.Logger]"

Usage: TypeAlias = Mapping[str, Fraction]
"""Amount x score x seconds of each configured group, in order. A group without records has zero."""


class StaleRecords(AuditordError):
    """The records are not up to date, so usage may be missing.

    Remedy:
        find out why no records arrive (`auditord status`); until then priorities do not change.
    """


async def look_up_usage(config: PriorityConfig, context: PluginContext) -> Usage:
    """Return the usage of each configured group.

    Raises:
        StaleRecords: the records are too old.
        AuditordError: the records cannot be read.
    """
    now = context.now()
    if config.stale_after is not None:
        since = now - config.stale_after
        recent = aggregates.AggregateQuery(_stops_between(since, now))
        if not (await context.records.aggregate(recent)).groups:
            raise StaleRecords(
                f"no record stopped since {since.isoformat()}: a collector may be behind. Priorities do not change (see"
                " stale_after)"
            )
    return usage_in(config, await context.records.aggregate(question(config, now)), context.log)


def question(config: PriorityConfig, now: datetime) -> aggregates.AggregateQuery:
    by: list[aggregates.Dimension] = [aggregates.MetaValue(*config.group_keys)]
    if config.component_combination == "product":
        for component, score in config.components.items():
            by.append(aggregates.ComponentAmount(component))
            if score is not None:
                by.append(aggregates.ScoreValue(component, score))
    overlap = config.window == "overlap"
    where: Condition = AllOf()
    if config.duration is not None and not overlap:
        since = now - config.duration
        is_start = config.window == "start"
        where = TimeCompares(TimeField.START, Comparison.GTE, since) if is_start else _stops_between(since, now)
    return aggregates.AggregateQuery(
        where=where,
        by=tuple(by),
        usage=tuple(
            aggregates.ComponentUsage(name, () if score is None else (score,))
            for name, score in config.components.items()
        ),
        window=Window(now - config.duration, now) if overlap and config.duration is not None else None,
        as_of=now if overlap else None,
    )


def _stops_between(since: datetime, now: datetime) -> Condition:
    """Return a condition on end times. Without the end, records from a wrong clock would count for years."""
    return AllOf(
        (TimeCompares(TimeField.STOP, Comparison.GTE, since), TimeCompares(TimeField.STOP, Comparison.LTE, now))
    )


def usage_in(config: PriorityConfig, answer: aggregates.Aggregates, log: Log) -> Usage:
    """Return the usage from the result of :func:`question`. Components without a score count with 1, with a warning."""
    usage: defaultdict[str | None, Fraction] = defaultdict(Fraction)
    unknown: set[str] = set()
    for group in answer.groups:
        name = group.key[0]
        if name in config.group_mapping and config.components and not any(used.known for used in group.usage):
            unknown.add(str(name))
        if not config.components:
            of_group = Fraction(group.runtime)
        elif config.component_combination == "product":
            of_group = _product(config, group, log)
        else:
            of_group = Fraction()
            for (component, score), used in zip(config.components.items(), group.usage, strict=True):
                if score is None:
                    of_group += used.sums.amount_runtime
                    continue
                unscored = used.scores[score].unscored
                of_group += Fraction(used.scores[score].amount_runtime) + unscored.amount_runtime
                if unscored != aggregates.AmountSums():
                    _warn_unscored(log, group, component, score)
        usage[name if isinstance(name, str) else None] += of_group / answer.ticks_per_second
    if None in usage:
        log.warning("records without %s do not count for any group", " or ".join(config.group_keys))
    for name in sorted(unknown):
        needed = " or ".join(config.components)
        log.warning("group %s: records without %s have an unknown usage, which counts as 0", name, needed)
    return {name: usage.get(name, Fraction()) for name in config.group_mapping}


def _product(config: PriorityConfig, group: aggregates.Group, log: Log) -> Fraction:
    values = iter(group.key[1:])
    time: Fraction | None = None
    factors: list[Fraction] = []
    for (component, score), used in zip(config.components.items(), group.usage, strict=True):
        amount, value = next(values), None if score is None else next(values)
        if isinstance(amount, int):
            factors.append(Fraction(amount))
        elif not used.known:
            continue
        elif time is None:  # the records have the total, which includes the time
            time = Fraction(used.sums.amount_runtime)
        else:
            factors.append(Fraction(used.sums.amount_runtime, group.runtime or 1))
        if score is not None and value is None:
            _warn_unscored(log, group, component, score)
        factors.append(Fraction(value) if isinstance(value, Decimal) else Fraction(1))
    product = Fraction(group.runtime if factors else 0) if time is None else time
    for factor in factors:
        product *= factor
    return product


def _warn_unscored(log: Log, group: aggregates.Group, component: str, score: str) -> None:
    log.warning("group %s: %s without the score %s counts with 1", group.key[0], component, score)


Targets: TypeAlias = Mapping[str, Fraction]
"""The priority of each group, not rounded."""

_HALF: Final = Fraction(1, 2)


def targets(usage: Usage, mode: Mode, low: int, high: int) -> Targets | None:
    """Return priorities from ``low`` to ``high``, or None if no group has any usage.

    FullSpread: ``(v - least) / (most - least) * (high - low) + low``, or ``high`` for all groups if usages are equal.
    ScaledBySum: ``(high - low) / sum * v + low``.
    """
    if not any(usage.values()):
        return None
    values = list(usage.values())
    least, most, total = min(values), max(values), sum(values)
    if mode != "FullSpread":
        shares = [value / total for value in values]
    elif least == most:
        shares = [Fraction(1)] * len(values)
    else:
        shares = [(value - least) / (most - least) for value in values]
    return {group: low + share * (high - low) for group, share in zip(usage, shares, strict=True)}


def smooth(wanted: Targets, last: Mapping[str, Fraction], smoothing: float) -> Targets:
    """Return the last priorities, moved towards the new ones. A new group gets its priority at once.

    The result is not rounded, since small steps would otherwise never have an effect.
    """
    kept = Fraction(repr(smoothing))
    return {
        group: target if group not in last else kept * last[group] + (1 - kept) * target
        for group, target in wanted.items()
    }


def round_half_up(value: Fraction) -> int:
    """Round to the nearest integer, half up."""
    return math.floor(value + _HALF)


RUNS_FOR: Final = timedelta(days=3)
DAYS_FOR: Final = timedelta(days=365)

_MOST_RUNS: Final = 300
"""The maximum number of runs to keep: a chart has up to 400 labels, and runs can be a few minutes apart."""

_DRAWN: Final = 8
"""The maximum number of groups in a chart."""


class PriorityState(msgspec.Struct):
    """The plugin's state.

    Args:
        last: the priorities that were set last, before rounding.
        runs: the time of each run in the last days, and the priorities after it.
        days: each UTC day of the last year with a run, and the priorities after its last run.
    """

    last: dict[str, float] = {}
    runs: list[tuple[datetime, dict[str, int]]] = []
    days: list[tuple[date, dict[str, int]]] = []

    def add_run(self, priorities: Targets, now: datetime) -> "PriorityState":
        whole = {group: round_half_up(each) for group, each in priorities.items()}
        runs = [*(each for each in self.runs if each[0] > now - RUNS_FOR), (now, whole)][-_MOST_RUNS:]
        today = now.date()
        days = [*(each for each in self.days if today - DAYS_FOR < each[0] < today), (today, whole)]
        return PriorityState({group: float(each) for group, each in priorities.items()}, runs, days)


def read_state(saved: Any) -> PriorityState:  # Any: the JSON that was saved
    return PriorityState() if saved is None else msgspec.convert(saved, PriorityState)


async def show_priorities(context: PanelContext) -> Sequence[PanelPart]:
    """Return the panel: the groups with their priorities, the highest first, and their history."""
    state = read_state(await context.state())
    if not state.last:
        return ["No priority has been set yet."]
    ordered = sorted(state.last, key=lambda group: (-state.last[group], group))
    rows = [(group, round_half_up(Fraction(state.last[group]))) for group in ordered]
    table = Table([Column("Group"), Column("Priority")], rows, "Priorities of the last run")
    by_run = [(f"{moment:%-d %b %H:%M}", priorities) for moment, priorities in state.runs]
    parts: list[PanelPart] = [table]
    if len(by_run) > 1:
        parts.append(_chart("Runs of the last days (UTC)", by_run, ordered))
    if len(state.days) > 1:
        known, first = dict(state.days), state.days[0][0]
        every = [first + timedelta(days=number) for number in range((state.days[-1][0] - first).days + 1)]
        parts.append(_chart("Days", [(f"{day:%-d %b %Y}", known.get(day, {})) for day in every], ordered))
    if len(ordered) > _DRAWN:
        parts.append(f"The charts show the {_DRAWN} groups with the highest priorities.")
    return parts


def _chart(title: str, course: Sequence[tuple[str, Mapping[str, int]]], groups: Sequence[str]) -> Chart:
    series = [Series(group, [priorities.get(group) for _, priorities in course]) for group in groups[:_DRAWN]]
    return Chart(title, [label for label, _ in course], series, lines=True)


_PLACEHOLDER: Final = re.compile(r"\{(priority|resources?|group|[1-9]\d*)\}", re.ASCII)

COMMAND_TIMEOUT: Final = timedelta(seconds=30)
"""A command that takes longer is killed."""

MAX_OUTPUT: Final = 1024 * 1024


class PrioritiesNotSet(AuditordError):
    """Some commands failed. All others were run.

    Remedy:
        run the command in the message as the service's user; the next run sets all priorities again.
    """


async def set_priorities(config: PriorityConfig, context: PluginContext) -> None:
    """Set the priority of each group. If no group has usage, nothing changes. Failed groups keep their last priority.

    Raises:
        PrioritiesNotSet: some commands failed.
        AuditordError: the records cannot be read or are stale. No command was run.
    """
    usage = await look_up_usage(config, context)
    wanted = targets(usage, config.computation_mode, config.min_priority, config.max_priority)
    if not context.dry_run:
        metrics.show_usage(context.instance, config.metrics, usage)
    if wanted is None:
        context.log.warning("no group has any usage: no command is run, and priorities do not change")
        return
    wanted = smooth(wanted, _last(config, context.state), config.smoothing)
    failed: dict[str, CommandFailed] = {}  # the last failure of each group
    for group, argv in all_commands(config, usage, {group: round_half_up(each) for group, each in wanted.items()}):
        if context.dry_run:
            context.show(show_command(argv))
            continue
        try:
            await context.run_command(argv, timeout=COMMAND_TIMEOUT, max_output=MAX_OUTPUT)
        except CommandFailed as error:
            failed[group] = error
            metrics.FAILURES.labels(context.instance, group).inc()
            context.log.error("a command for group %s failed: %s", group, error)  # noqa: TRY400 says enough
    if context.dry_run:
        return
    applied = {group: each for group, each in wanted.items() if group not in failed}
    kept = {group: each for group, each in _last(config, context.state).items() if group in failed}
    state = read_state(context.state).add_run(kept | applied, context.now())
    await context.save_state(msgspec.to_builtins(state))
    whole = {group: round_half_up(each) for group, each in applied.items()}
    metrics.show_applied(context.instance, config.metrics, whole)
    if failed:
        group, reason = next(iter(failed.items()))
        raise PrioritiesNotSet(
            f"commands failed for {len(failed)} of {len(wanted)} groups, all others ran; {group}: {reason}"
        )


def _last(config: PriorityConfig, state: Any) -> Mapping[str, Fraction]:  # Any: the JSON that was saved
    """Return the last unrounded priorities, within the current bounds."""
    low, high = config.min_priority, config.max_priority
    return {group: Fraction(min(max(each, low), high)) for group, each in read_state(state).last.items()}


def all_commands(config: PriorityConfig, usage: Usage, priorities: dict[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Yield the command lines of all groups, command by command as AUDITOR does, each with its group."""
    for template in config.commands:
        words = shlex.split(template)
        for group, parameters in config.group_mapping.items():
            values = {
                "priority": str(priorities[group]),
                "resource": format_usage(usage[group]),
                "resources": format_usage(usage[group]),
                "group": group,
                **{str(place): parameter for place, parameter in enumerate(parameters, start=1)},
            }
            yield group, [_fill_in(word, values) for word in words]


def _fill_in(word: str, values: dict[str, str]) -> str:
    """Fill in all placeholders in one pass, so that braces in a name are not expanded. Unknown numbers are kept."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), word)


def format_usage(usage: Fraction) -> str:
    """Return a number as AUDITOR prints it: the shortest decimal of the 64-bit float, without exponent."""
    text = format(Decimal(repr(aggregates.nearest_float(usage))), "f")
    return text.removesuffix(".0")


async def check(config: PriorityConfig, _: Context) -> AsyncGenerator[Finding, None]:
    """Check that the programs that set priorities exist. They are not run, since their effect is unknown."""
    for program in dict.fromkeys(shlex.split(command)[0] for command in config.commands):
        if shutil.which(program) is None:
            yield Finding(Severity.FAILURE, program, "not found", "install it, or name its path")
        else:
            yield Finding(Severity.OK, program, "found")


PRIORITY: Final = PluginKind(
    name="priority",
    config=PriorityConfig,
    run=set_priorities,
    needs=lambda config: config.components,
    effect=lambda config: f"sets the priorities of {counted(len(config.group_mapping), 'group')}",
    import_config=lambda document, _others: import_config(document),
    check=check,
)
