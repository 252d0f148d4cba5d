"""Energy and CO2: measured where records have it, else estimated by core; the grid's CO2 as a constant or over time."""

import csv
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from io import TextIOWrapper
from itertools import accumulate
from typing import Final

from auditord_builtin.utilisation.config import Energy, GridIntensity, SiteEnergy
from auditord_hookspecs import AuditordError
from auditord_hookspecs.folders import UnsafePath, open_regular

JOULES_PER_KWH: Final = 3_600_000
_NOTHING: Final = SiteEnergy()


class BadIntensity(AuditordError):
    """The file of the grid's CO2 cannot be used.

    Remedy:
        mend the file that the text names, or leave `grid_intensity` out; the report is made at the next run.
    """


@dataclass(frozen=True, slots=True)
class Intensity:
    """Kilograms of CO2 per kWh by days of UTC, each the mean of its values; ``sums`` are of the days up to each."""

    days: Sequence[date]
    sums: Sequence[Fraction]

    def mean(self, first: date, last: date) -> Fraction | None:
        """The mean over some days, or None unless each of them has values."""
        begin, end = bisect_left(self.days, first), bisect_left(self.days, last)
        if end >= len(self.days) or end - begin != (last - first).days:
            return None
        if self.days[begin] != first or self.days[end] != last:
            return None
        before = self.sums[begin - 1] if begin else Fraction(0)
        return (self.sums[end] - before) / (end - begin + 1)


def read_intensity(options: GridIntensity) -> Intensity:
    """The file's values.

    Raises:
        BadIntensity: it cannot be read, lacks a column, or has a value that is none.
    """
    try:
        with open_regular(options.file) as file, TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            return intensity_of(csv.DictReader(text), options)
    except (OSError, UnsafePath, UnicodeDecodeError, csv.Error, ValueError, InvalidOperation) as error:
        raise BadIntensity(f"grid_intensity: {options.file} cannot be used: {error}") from error


def intensity_of(rows: Iterable[Mapping[str, str | None]], options: GridIntensity) -> Intensity:
    """The intensity of the file's rows.

    Raises:
        ValueError: a column is missing or has a value that is none.
    """
    by_day: defaultdict[date, list[Fraction]] = defaultdict(list)
    for number, row in enumerate(rows, 2):
        time, value = row.get(options.time_column), row.get(options.value_column)
        if not time or not value:
            raise ValueError(f"line {number} has no {options.time_column} or no {options.value_column}")
        by_day[_day(time)].append(_per_kwh(value, number) * Fraction(options.factor))
    days = sorted(by_day)
    return Intensity(days, list(accumulate(sum(by_day[day], Fraction(0)) / len(by_day[day]) for day in days)))


def _day(text: str) -> date:
    moment = datetime.fromisoformat(text.strip())
    return (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)).date()


def _per_kwh(text: str, number: int) -> Fraction:
    value = Decimal(text.strip())
    if not value.is_finite() or value < 0:
        raise ValueError(f"line {number}: '{text}' is no amount of CO2")
    return Fraction(value)


@dataclass(frozen=True, slots=True)
class Estimator:
    """Estimates the energy of jobs, and the CO2 that the grid emitted for it, by its intensity if that is known."""

    options: Energy
    intensity: Intensity | None = None

    def energy(self, site: str | None, core_time: int, joules: int | None) -> Fraction | None:
        """KWh of some jobs, with what the building adds, of joules if they were measured; None if that is not known."""
        here = self._here(site)
        pue = Fraction(self.options.pue if here.pue is None else here.pue)
        if joules is not None:
            return Fraction(joules, JOULES_PER_KWH) * pue
        watt = self.options.watt_per_core if here.watt_per_core is None else here.watt_per_core
        return None if watt is None else Fraction(watt) * core_time / JOULES_PER_KWH * pue

    def co2(self, site: str | None, kwh: Fraction, days: tuple[date, date] | None) -> Fraction | None:
        """Kg for energy of some days, from the first to the last; None if that is not known.

        A constant of the site goes before the grid's values.
        """
        here = self._here(site).co2_per_kwh
        if here is not None:
            return kwh * Fraction(here)
        mean = self.intensity.mean(*days) if self.intensity is not None and days is not None else None
        if mean is None and self.options.co2_per_kwh is not None:
            mean = Fraction(self.options.co2_per_kwh)
        return None if mean is None else kwh * mean

    def _here(self, site: str | None) -> SiteEnergy:
        return _NOTHING if site is None else self.options.sites.get(site, _NOTHING)
