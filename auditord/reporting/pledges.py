"""Pledges: capacity that was promised to a site or group.

A pledge is a constant number of cores, or of cores times score (for WLCG: HEPscore23), from one day to another. In a
period, it amounts to power times hours.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Final

import msgspec
from msgspec.structs import replace

from auditord.reporting.measures import Figure
from auditord.reporting.questions import Question
from auditord_hookspecs.query import AllOf, Window

_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_SECONDS_PER_HOUR: Final = 3_600


class Scope(msgspec.Struct, frozen=True):
    """The beneficiaries of a pledge.

    Args:
        site: None for all sites.
        group: None for all groups at the site.
    """

    site: str | None
    group: str | None

    def includes(self, other: "Scope") -> bool:
        """Return whether all sites and groups of another scope belong to this one."""
        return self.site in {None, other.site} and self.group in {None, other.group}


class Pledge(msgspec.Struct, frozen=True):
    """A promised capacity.

    Args:
        scope: the site and the group that benefit.
        score: the benchmark that is the unit of ``power``; None for cores.
        power: the promised capacity.
        end: the day after the last day.
    """

    scope: Scope
    score: str | None
    power: Fraction
    first: date
    end: date

    def hours(self, window: Window) -> Fraction:
        """Return power times the hours of the window in which the pledge holds; days are those of the window's zone."""
        first, end = max(window.start.date(), self.first), min(window.stop.date() + _DAY, self.end)
        if end <= first:
            return Fraction(0)
        begin, stop = (datetime.combine(day, time.min, window.start.tzinfo).astimezone(UTC) for day in (first, end))
        covered = min(stop, window.stop.astimezone(UTC)) - max(begin, window.start.astimezone(UTC))
        return self.power * Fraction(max(covered // _SECOND, 0), _SECONDS_PER_HOUR)


def sum_pledges(pledges: Sequence[Pledge], question: Question, window: Window) -> Fraction | None:
    """Return the sum of the pledges to a question's site and group in a window; None without a pledge.

    While a pledge holds, it includes the narrower ones: one to a whole site includes those to its groups.
    """
    filters: Mapping[str, str] = dict(question.filters)
    if question.measures[0].name not in {"core-hours", "score-hours"} or set(filters) - {"site", "group"}:
        return None
    if question.among != AllOf():
        return None  # a pledge is for all jobs of a site or group
    score = question.score if question.measures[0].scored else None
    asked = Scope(filters.get("site"), filters.get("group"))
    found = [each for each in pledges if each.score == score and asked.includes(each.scope)]
    amounts = [amount for part in _between_changes(window, found) for amount in _widest(found, part)]
    return sum(amounts, Fraction(0)) if amounts else None


def use_of_pledge(
    pledges: Sequence[Pledge], question: Question, labels: Sequence[str | None], used: Figure
) -> Fraction | None:
    """Return how much of its pledge a row has used, in percent; None without a pledge.

    Args:
        pledges: the pledges.
        question: the question of the report.
        labels: the labels of the row; none for all rows together.
        used: the total of the row.
    """
    chosen = tuple([(name, label) for name, label in zip(question.groups, labels, strict=False) if label])
    if question.window is None or len(chosen) < len(labels):
        return None
    amount = sum_pledges(pledges, replace(question, filters=(*question.filters, *chosen)), question.window)
    return 100 * (used.value or Fraction(0)) / amount if amount else None


def _widest(pledges: Sequence[Pledge], window: Window) -> Sequence[Fraction]:
    """Return the amounts of the pledges that hold in a window and that no other such pledge includes."""
    amounts = [(pledge.scope, hours) for pledge in pledges if (hours := pledge.hours(window))]
    scopes = {scope for scope, _ in amounts}
    return [hours for scope, hours in amounts if not any(other.includes(scope) for other in scopes - {scope})]


def _between_changes(window: Window, pledges: Sequence[Pledge]) -> Sequence[Window]:
    """Cut a window at the days on which pledges begin or end."""
    days = {day for pledge in pledges for day in (pledge.first, pledge.end)}
    changes = sorted(datetime.combine(day, time.min, window.start.tzinfo) for day in days)
    limits = [window.start, *(each for each in changes if window.start < each < window.stop), window.stop]
    return [Window(start, stop) for start, stop in pairwise(limits)]
