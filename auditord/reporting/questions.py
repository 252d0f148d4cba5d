"""A requested report and its query to the store.

A record counts in the period in which it stopped, with its whole runtime, as in the messages to APEL. So each record
counts once, and the sums of days, months and sites add up.
"""

from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from typing import Final

import msgspec

from auditord.reporting.measures import CORES, DEFAULT_SCORE, Measure
from auditord_hookspecs.aggregates import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    ComponentAmount,
    ComponentPresent,
    ComponentUsage,
    Dimension,
    MetaValue,
)
from auditord_hookspecs.errors import AuditordError
from auditord_hookspecs.query import AllOf, Condition, MetaAbsent, MetaContains, MetaContainsAny, Window, match_stopped
from auditord_hookspecs.zones import UTC_NAME

SIZE: Final = "size"
"""The dimension of job sizes: the number of a job's cores, in classes."""

_META: Final = "meta:"


class UnknownCo2(AuditordError):
    """A report needs the CO2 per kWh, which is not configured.

    Remedy:
        set ui.co2_per_kwh, or use --co2-per-kwh.
    """


class LabelKeys(msgspec.Struct, frozen=True):
    """The meta keys behind the names ``site``, ``group`` and ``user``."""

    site: str = "site_id"
    group: str = "group_id"
    user: str = "user_id"

    def key(self, name: str) -> str:
        """Return the meta key of a name. Other names are keys themselves, and ``meta:site`` is the key ``site``."""
        if name.startswith(_META):
            return name.removeprefix(_META)
        return {"site": self.site, "group": self.group, "user": self.user}.get(name, name)


class Question(msgspec.Struct, frozen=True):
    """A requested report.

    Args:
        measures: the measures of each cell, at least one.
        by: ``site``, ``group``, ``user``, ``size`` or a meta key; None for all records together.
        bin: the unit of the time axis; None for the whole period.
        window: selects the records that stopped in it; None for all.
        filters: pairs of a name as for ``by`` and the required value; an empty value selects records without the key.
        score: the benchmark by which core hours are weighted.
        keys: the meta keys behind the names.
        zone: the time zone of the bins, which are complete if the window consists of its days.
        co2_per_kwh: the CO2 that the grid emits per kWh, in kg; None if unknown.
        labels: the requested rows (the answer may have others as well); None for all rows.
        now: the current time, if unfinished bins should be marked as partial.
        among: a further condition on the records.
        then: a second label like ``by``; each row then has one value of either.
    """

    measures: tuple[Measure, ...]
    by: str | None = None
    bin: CalendarUnit | None = None
    window: Window | None = None
    filters: tuple[tuple[str, str], ...] = ()
    score: str = DEFAULT_SCORE
    keys: LabelKeys = msgspec.field(default_factory=LabelKeys)
    zone: str = UTC_NAME
    co2_per_kwh: Fraction | None = None
    labels: tuple[str, ...] | None = None
    now: datetime | None = None
    among: Condition = AllOf()
    then: str | None = None

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the labels that rows have."""
        return tuple([each for each in (self.by, self.then) if each is not None])

    @property
    def present(self) -> tuple[str, ...]:
        """The components with and without which records must be summed separately."""
        return tuple(dict.fromkeys([each for measure in self.measures for each in measure.present]))

    @property
    def counts_users(self) -> bool:
        """True if the users of each cell must be known, and not only sums."""
        return any(measure.counts_users for measure in self.measures)

    @property
    def usage(self) -> Mapping[str, ComponentUsage]:
        """The components whose sums the measures need, by name."""
        usage: dict[str, ComponentUsage] = {}
        for measure in self.measures:
            for name in measure.components:
                if measure.scored or name not in usage:
                    usage[name] = ComponentUsage(name, (self.score,) if measure.scored else ())
        return usage

    def where(self) -> Condition:
        """Return the condition on the records that count."""
        filters = [(self.keys.key(name), value) for name, value in self.filters]
        conditions: list[Condition] = [MetaContains(key, value) if value else MetaAbsent(key) for key, value in filters]
        if self.window is not None:
            conditions += match_stopped(self.window).conditions
        if self.labels is not None and self.by is not None:
            conditions.append(MetaContainsAny(self.keys.key(self.by), self.labels))
        if self.among != AllOf():
            conditions.append(self.among)
        return AllOf(tuple(conditions))

    def query(self) -> AggregateQuery:
        """Return the query for the store; its dimensions are bin, labels, user, and the presence of components.

        Raises:
            UnknownCo2: a measure needs the CO2 of a kWh, which is not configured.
        """
        if self.co2_per_kwh is None and any(measure.needs_intensity for measure in self.measures):
            raise UnknownCo2("the CO2 per kWh is unknown: configure ui.co2_per_kwh, or use --co2-per-kwh (in kg)")
        dimensions, usage = list[Dimension](), tuple(self.usage.values())
        if self.bin is not None:
            dimensions.append(CalendarPeriod(self.bin, zone=self.zone))
        dimensions += [
            ComponentAmount(CORES) if name == SIZE else MetaValue(self.keys.key(name)) for name in self.groups
        ]
        if self.counts_users:
            dimensions.append(MetaValue(self.keys.user))
        dimensions += map(ComponentPresent, self.present)
        return AggregateQuery(self.where(), tuple(dimensions), usage)
