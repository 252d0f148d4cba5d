"""CPU times that look like milliseconds: AUDITOR's Slurm collectors wrote them before 0.11, and seconds since.

A job cannot use more CPU time than its wall time on all of its cores; one that seems to have used more than twice as
much (threads, and rounding, explain less) was most likely not counted in seconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from auditord_hookspecs import Column, Record, Table

KEPT_IN_MILLISECONDS: Final = "_milli"
"""AUDITOR's own script for the change of units keeps the old amount of ``X`` as ``X_milli``; ``X`` is right then."""

_OFTEN: Final = 0.5
"""From this share of a month's records on, its unit is in doubt: in milliseconds, only idle jobs stay below."""


@dataclass(slots=True)
class MonthOfUnits:
    """The records of a component and a month (of stop times, in UTC).

    Args:
        month: such as ``2024-02``.
        records: how many have it, with a wall time and cores to compare with.
        before: how many of them use more than twice their wall time on all cores, as they came.
        after: the same once converted.
    """

    month: str
    records: int = 0
    before: int = 0
    after: int = 0

    @property
    def looked_wrong(self) -> bool:
        """True if the month's amounts look like milliseconds as they came."""
        return self.before >= _OFTEN * self.records

    @property
    def looks_wrong(self) -> bool:
        """True if they still do after the conversion."""
        return self.after >= _OFTEN * self.records


class Units:
    """Adds up what records say about the units of their components."""

    def __init__(self, cores: Sequence[str]) -> None:
        self._cores = cores
        self._names: dict[str, bool] = {}
        self._months: dict[tuple[str, int, int], MonthOfUnits] = {}

    def add(self, before: Record, after: Record) -> None:
        """Compare a record before and after conversion. Open records and those without wall time are ignored."""
        stop, runtime = before.stop_time, before.runtime
        if stop is None or not runtime or runtime < 0:
            return
        limit = None
        for came, kept in zip(before.components, after.components, strict=True):
            if self._is_cpu_time(came.name):
                limit = limit or 2 * runtime * self._cores_of(before)
                if not limit:
                    return
                month = self._month(came.name, stop.year, stop.month)
                month.records += 1
                month.before += came.amount > limit
                month.after += kept.amount > limit

    def suspicious(self) -> Iterator[tuple[str, list[MonthOfUnits]]]:
        """The components with months that look like milliseconds, before or after; all of their months, in order."""
        for name in sorted({name for name, *_ in self._months}):
            months = [self._months[key] for key in sorted(self._months) if key[0] == name]
            if any(month.looked_wrong or month.looks_wrong for month in months):
                yield name, months

    def remarks(self) -> Sequence[str | Table]:
        """Return a table of the components that look like milliseconds; nothing if there are none.

        Neighbouring months of one verdict share a row.
        """
        rows = [
            (name, *_figures(list(run)), _verdict(*alike))
            for name, months in self.suspicious()
            for alike, run in groupby(months, key=lambda month: (month.looked_wrong, month.looks_wrong))
        ]
        return [_HEADING, Table(_COLUMNS, rows)] if rows else []

    def _cores_of(self, record: Record) -> int:
        for name in self._cores:
            for component in record.components:
                if component.name == name:
                    return component.amount
        return 0

    def _is_cpu_time(self, name: str) -> bool:
        known = self._names.get(name)
        if known is None:
            candidate = "cpu" in name.lower() and name not in self._cores
            known = self._names[name] = candidate and not name.endswith(KEPT_IN_MILLISECONDS)
        return known

    def _month(self, name: str, year: int, month: int) -> MonthOfUnits:
        key = name, year, month
        if key not in self._months:
            self._months[key] = MonthOfUnits(f"{year:04}-{month:02}")
        return self._months[key]


_HEADING: Final = "CPU times of more than 2 x wall time x cores, which look like milliseconds (--milliseconds NAME):"
_COLUMNS: Final = tuple(
    map(Column, ("component", "months", "records", "too large as they came", "as imported", "unit"))
)


def _figures(months: Sequence[MonthOfUnits]) -> tuple[str, ...]:
    records, before, after = (
        sum(counts) for counts in zip(*((each.records, each.before, each.after) for each in months), strict=True)
    )
    span = months[0].month if len(months) == 1 else f"{months[0].month} to {months[-1].month}"
    return span, f"{records:,}", f"{before:,} ({before / records:.1%})", f"{after:,} ({after / records:.1%})"


def _verdict(looked_wrong: bool, looks_wrong: bool) -> str:  # noqa: FBT001 as groupby has them
    if looks_wrong:
        return "looks like milliseconds"
    return "was milliseconds, is seconds" if looked_wrong else "seconds"
