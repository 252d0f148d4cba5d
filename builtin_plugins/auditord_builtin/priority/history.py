"""The priorities that were set, over time: each run of a few days, and the last one of each day of a year."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from fractions import Fraction
from typing import Any, Final

import msgspec

from auditord_builtin.priority.usage import Targets, rounded
from auditord_hookspecs import Chart, Column, PanelContext, PanelPart, Series, Table

RUNS_FOR: Final = timedelta(days=3)
DAYS_FOR: Final = timedelta(days=365)

_MOST_RUNS: Final = 300
"""The largest number of runs to keep: a chart has up to 400 labels, and a run can take place every few minutes."""

_DRAWN: Final = 8
"""Groups of a chart."""


class PriorityState(msgspec.Struct):
    """The plugin's state.

    Args:
        last: the priorities that were set last, before rounding.
        runs: of the last days, the instant of each run and the priorities after it.
        days: of the last year, each day (UTC) with a run, and the priorities after the last of them.
    """

    last: dict[str, float] = {}
    runs: list[tuple[datetime, dict[str, int]]] = []
    days: list[tuple[date, dict[str, int]]] = []

    def followed_by(self, priorities: Targets, now: datetime) -> "PriorityState":
        """Return the state after a run."""
        whole = {group: rounded(each) for group, each in priorities.items()}
        runs = [*(each for each in self.runs if each[0] > now - RUNS_FOR), (now, whole)][-_MOST_RUNS:]
        today = now.date()
        days = [*(each for each in self.days if today - DAYS_FOR < each[0] < today), (today, whole)]
        return PriorityState({group: float(each) for group, each in priorities.items()}, runs, days)


def read_state(saved: Any) -> PriorityState:  # Any: the JSON that a run has saved
    """Return the saved state. Up to version 0.1.0 it was only the last priorities."""
    if saved is None:
        return PriorityState()
    if isinstance(saved.get("last"), Mapping):
        return msgspec.convert(saved, PriorityState)
    return PriorityState(dict(saved))


async def show_priorities(context: PanelContext) -> Sequence[PanelPart]:
    """Return the panel: the groups with their priorities, the highest first, and their history."""
    state = read_state(await context.state())
    if not state.last:
        return ["No priority has been set yet."]
    ordered = sorted(state.last, key=lambda group: (-state.last[group], group))
    rows = [(group, rounded(Fraction(state.last[group]))) for group in ordered]
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
        parts.append(f"The charts have the {_DRAWN} groups with the highest priorities.")
    return parts


def _chart(title: str, course: Sequence[tuple[str, Mapping[str, int]]], groups: Sequence[str]) -> Chart:
    series = [Series(group, [priorities.get(group) for _, priorities in course]) for group in groups[:_DRAWN]]
    return Chart(title, [label for label, _ in course], series, lines=True)
