"""Capacity that was promised to sites and groups, as an amount in the unit of a measure.

A pledge is a constant power: a number of cores, or cores times score (for WLCG: HEPscore23), from one day
to another. In a period it amounts to power times hours.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from typing import Final

import msgspec

from auditord.reporting.questions import Question
from auditord_hookspecs.query import Window

_SECOND: Final = timedelta(seconds=1)
_SECONDS_PER_HOUR: Final = 3_600


class Pledge(msgspec.Struct, frozen=True):
    """A promised capacity.

    Args:
        site: whose; None for all sites.
        group: for whom; None for everybody at the site.
        score: the benchmark in whose unit the power is; None for cores.
        power: in that unit.
        first: the first day.
        end: the day behind the last one.
    """

    site: str | None
    group: str | None
    score: str | None
    power: Fraction
    first: date
    end: date

    def hours(self, window: Window) -> Fraction:
        """Return power times the pledge's hours in a window of whole days, of its time zone."""
        first, end = max(window.start.date(), self.first), min(window.stop.date(), self.end)
        if end <= first:
            return Fraction(0)
        begin, stop = (datetime.combine(day, time.min, window.start.tzinfo).astimezone(UTC) for day in (first, end))
        return self.power * Fraction((stop - begin) // _SECOND, _SECONDS_PER_HOUR)


def pledged(pledges: Sequence[Pledge], question: Question, window: Window) -> Fraction | None:
    """Return the sum of pledges for a question's subject in a window of whole days; None without a pledge."""
    wanted = _wanted(question)
    if wanted is None:
        return None
    score = question.score if question.measures[0].scored else None
    found = _matching([each for each in pledges if each.score == score], *wanted)
    amounts = [each.hours(window) for each in found]
    return sum(amounts, Fraction(0)) if any(amounts) else None


def _wanted(question: Question) -> tuple[str | None, str | None] | None:
    """Return the site and the group to which the question is limited; None if no pledge fits its other filters."""
    filters: Mapping[str, str] = dict(question.filters)
    if question.measures[0].name not in {"core-hours", "score-hours"} or set(filters) - {"site", "group"}:
        return None
    return filters.get("site"), filters.get("group")


def _matching(pledges: Sequence[Pledge], site: str | None, group: str | None) -> Sequence[Pledge]:
    """Return the pledges to a site and a group; those to a whole site are not added to those to its groups."""
    here = [each for each in pledges if site in {None, each.site}]
    if group is not None:
        return [each for each in here if each.group == group]
    whole = {each.site for each in here if each.group is None}
    return [each for each in here if each.group is None or each.site not in whole]
