"""Pledges: capacity that was promised to a site or group.

A pledge is a constant number of cores, or of cores times score (for WLCG: HEPscore23), from one day to another. In a
period, it amounts to power times hours.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from itertools import chain, pairwise, starmap
from typing import Final

import msgspec
from msgspec.structs import replace

from auditord.reporting.questions import Question
from auditord.reporting.report import Row
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

    def __str__(self) -> str:
        return " at ".join(filter(None, [self.group, self.site])) or "all sites"

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
    """Return the sum of the pledges to a question's site and group in a window.

    While a pledge holds, it includes the narrower ones: one to a whole site includes those to its groups. Without a
    pledge, or if one covers only part of the window, return None: usage of all days is not compared with it.
    """
    parts = _parts(pledges, question, window)
    if not any(parts.values()) or _find_partial(parts):
        return None
    return sum((pledge.hours(part) for part, held in parts.items() for pledge in held), Fraction(0))


def compare_with_pledges(
    pledges: Sequence[Pledge], question: Question, rows: Sequence[Row]
) -> Sequence[Fraction | None]:
    """Return how much of its pledge each row has used, in percent.

    None stands for an unknown use, and for no pledge for the whole period.

    Args:
        pledges: the pledges.
        question: the question of the report.
        rows: rows of the report; one without labels stands for all rows together.
    """
    if (window := question.window) is None or not pledges:
        return [None] * len(rows)
    found: list[Fraction | None] = []
    for row in rows:
        narrowed, used = _narrow(question, row.labels), row.total[0].value
        amount = None if narrowed is None else sum_pledges(pledges, narrowed, window)
        found.append(100 * used / amount if amount and used is not None else None)
    return found


def remark_on_pledges(
    pledges: Sequence[Pledge], question: Question, rows: Iterable[Sequence[str | None]] = ()
) -> str | None:
    """Return which days are covered by pledges that cover only part of the period; None if there are none.

    Args:
        pledges: the pledges.
        question: the question of the report.
        rows: the labels of each row that is compared with its pledge.
    """
    if (window := question.window) is None:
        return None
    found: dict[Pledge, None] = {}
    for labels in ((), *rows):
        if (narrowed := _narrow(question, labels)) is not None:
            found |= dict.fromkeys(_find_partial(_parts(pledges, narrowed, window)))
    begin, last = window.start.date(), (window.stop - timedelta(microseconds=1)).date()
    days = [
        f"{each.scope}, {max(each.first, begin):%-d %b %Y} to {min(each.end - _DAY, last):%-d %b %Y}"
        for each in sorted(found, key=lambda each: each.first)
    ]
    return f"Not compared, since the pledge covers only part of the period: {'; '.join(days)}" if days else None


def _narrow(question: Question, labels: Sequence[str | None]) -> Question | None:
    """Return the question about one row; None for a row of records without a label."""
    chosen = tuple([(name, label) for name, label in zip(question.groups, labels, strict=False) if label])
    return None if len(chosen) < len(labels) else replace(question, filters=(*question.filters, *chosen))


def _parts(pledges: Sequence[Pledge], question: Question, window: Window) -> Mapping[Window, Sequence[Pledge]]:
    """Return the pledges to a question's site and group that hold in each part of a window, without included ones."""
    filters: Mapping[str, str] = dict(question.filters)
    if question.measures[0].name not in {"core-hours", "score-hours"} or set(filters) - {"site", "group"}:
        return {}
    if question.among != AllOf():
        return {}  # a pledge is for all jobs of a site or group
    score = question.score if question.measures[0].scored else None
    asked = Scope(filters.get("site"), filters.get("group"))
    found = [each for each in pledges if each.score == score and asked.includes(each.scope)]
    days = {day for each in found for day in (each.first, each.end)}
    changes = sorted(datetime.combine(day, time.min, window.start.tzinfo) for day in days)
    limits = [window.start, *(each for each in changes if window.start < each < window.stop), window.stop]
    parts: dict[Window, Sequence[Pledge]] = {}
    for part in starmap(Window, pairwise(limits)):
        held = [each for each in found if each.hours(part)]
        scopes = {each.scope for each in held}
        parts[part] = [each for each in held if not any(other.includes(each.scope) for other in scopes - {each.scope})]
    return parts


def _find_partial(parts: Mapping[Window, Sequence[Pledge]]) -> Sequence[Pledge]:
    """Return the pledges whose site and group have no pledge in another part."""
    return [
        pledge
        for pledge in dict.fromkeys(chain.from_iterable(parts.values()))
        if not all(any(other.scope.includes(pledge.scope) for other in held) for held in parts.values())
    ]
