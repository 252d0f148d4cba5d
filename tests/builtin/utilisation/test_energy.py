"""Energy and CO2: constants, sites of their own, and the grid over time."""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from auditord_builtin.utilisation.config import Energy, GridIntensity
from auditord_builtin.utilisation.usage import BadIntensity, Estimator, intensity_of, read_intensity

DAY = date(2026, 1, 10)
OPTIONS = GridIntensity(file=Path("/unused"))


def series(**kg: str) -> list[Mapping[str, str | None]]:
    return [{"time": time, "kg_per_kwh": value} for time, value in kg.items()]


def test_a_site_of_its_own_and_all_others() -> None:
    energy = Energy.model_validate({"watt_per_core": 5, "pue": 2, "sites": {"A": {"watt_per_core": 4, "pue": 1}}})
    estimator = Estimator(energy)
    kwh = 3_600_000 // 100
    assert estimator.energy("A", kwh, None) == Fraction(4, 100)
    assert estimator.energy("B", kwh, None) == estimator.energy(None, kwh, None) == Fraction(10, 100)
    assert estimator.energy("B", kwh, 3_600_000) == 2  # measured, with what the building adds


def test_what_nobody_knows_is_not_zero() -> None:
    estimator = Estimator(Energy.model_validate({"sites": {"A": {"co2_per_kwh": 0}}}))
    assert estimator.energy("A", 1, None) is None
    assert estimator.co2("A", Fraction(1), None) == 0
    assert estimator.co2("B", Fraction(1), None) is None


def test_the_mean_of_days_and_of_the_values_of_a_day() -> None:
    rows = series(**{"2026-01-10T00:00": "0.1", "2026-01-10T12:00Z": "0.3", "2026-01-12T01:30+02:00": "0.6"})
    intensity = intensity_of(rows, OPTIONS.model_copy(update={"factor": Decimal("0.5")}))
    assert intensity.mean(DAY, DAY) == Fraction(1, 10)
    assert intensity.mean(DAY, date(2026, 1, 11)) == Fraction(1, 5)
    for first, last in ((date(2026, 1, 9), DAY), (DAY, date(2026, 1, 12)), (date(2026, 2, 1), date(2026, 2, 1))):
        assert intensity.mean(first, last) is None


def test_a_day_in_a_gap_is_not_known() -> None:
    intensity = intensity_of(series(**{"2026-01-10": "1", "2026-01-12": "1"}), OPTIONS)
    assert intensity.mean(DAY, date(2026, 1, 12)) is None
    assert intensity.mean(date(2026, 1, 11), date(2026, 1, 11)) is None
    estimator = Estimator(Energy.model_validate({"co2_per_kwh": "0.4"}), intensity)
    assert estimator.co2("A", Fraction(1), (DAY, date(2026, 1, 12))) == Fraction(2, 5)
    assert estimator.co2("A", Fraction(1), (DAY, DAY)) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time,kg\n2026-01-10,1\n", "line 2 has no time or no kg_per_kwh"),
        ("time,kg_per_kwh\n2026-01-10,1\n2026-01-11,\n", "line 3"),
        ("time,kg_per_kwh\n2026-01-10,-1\n", "is not an amount"),
        ("time,kg_per_kwh\n2026-01-10,NaN\n", "is not an amount"),
        ("time,kg_per_kwh\nyesterday,1\n", "yesterday"),
        ("time,kg_per_kwh\n2026-01-10,much\n", "cannot be used"),
        (None, "No such file"),
    ],
)
def test_a_bad_file_fails_the_report_and_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "grid.csv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadIntensity, match=r"grid\.csv cannot be used.*") as raised:
        read_intensity(GridIntensity(file=file))
    assert said in str(raised.value)
