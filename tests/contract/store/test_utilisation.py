"""The utilisation report's figures, from every store: AUDITOR's own vectors, and what a plain evaluation gives."""

import csv
from collections.abc import Sequence
from datetime import date
from fractions import Fraction
from typing import Any

import pytest

from auditord.store import Duplicates, Provenance
from auditord.store.reading import StoredRecords
from auditord.store.store import RecordStore
from auditord_builtin.utilisation.config import UtilisationConfig
from auditord_builtin.utilisation.periods import parse_period
from auditord_builtin.utilisation.report import as_csv, report_on
from auditord_builtin.utilisation.usage import Estimator, Intensity, Question, Totals, Usages, Who, totals_of
from auditord_hookspecs import Record
from tests.summed_records import aggregate_records
from tests.utilisation_jobs import JANUARY, auditors_jobs, job, mixed_jobs

pytestmark = pytest.mark.anyio

PERIOD = parse_period("2026-01")
BY_VO = [
    {"matches": r"^/([^/]+).*/Role=NULL(?:/|$)", "name": "{1}"},
    {"matches": r"^/([^/]+).*/Role=([^/]+)", "name": "{2}"},
]
SERIES = Intensity([date(2026, 1, 10), date(2026, 1, 11)], [Fraction(1, 4), Fraction(3, 4)])


async def usages(
    store: RecordStore, records: Sequence[Record], options: dict[str, Any], intensity: Intensity | None = None
) -> Usages:
    await store.add_all(records, Provenance(JANUARY), Duplicates.SAME_RUN, atomic=True)
    config = UtilisationConfig.model_validate(options)
    question = Question(config, Estimator(config.energy, intensity))
    query = question.query(PERIOD)
    found = question.usages(await StoredRecords(store).aggregate(query))
    assert found == question.usages(aggregate_records(records, query))
    return found


async def test_the_figures_of_auditors_plugin(store: RecordStore) -> None:
    options = {
        "group_keys": ["VOMS"],
        "group_names": BY_VO,
        "energy": {"watt_per_core": 1, "co2_per_kwh": 0.363, "sites": {"A": {"watt_per_core": 4.6}}},
    }
    found = await usages(store, auditors_jobs(), options)
    figures = {who.group: totals_of(usage) for who, usage in found.items()}
    assert {group: auditors(each) for group, each in figures.items()} == {
        "production": pytest.approx(
            (3.268167111111111, 1.0164648183365028, 177.61777777777777, 0.8170417777777778, 0.2965861653333333),
            rel=1e-15,
        ),
        "ilc": pytest.approx(
            (0.09464755555555554, 1.1925693919429745, 5.143888888888889, 0.023661888888888885, 0.008589265666666665),
            rel=1e-15,
        ),
    }


async def test_only_jobs_that_failed(store: RecordStore) -> None:
    jobs = [
        job(f"{user}-{outcome}", {"Cores": 2}, seconds=3_600 * hours, site_id="A", user_id=user, outcome=outcome)
        for user, hours in (("ann", 1), ("bob", 3))
        for outcome in ("completed", "failed", "timeout", "cancelled")
    ]
    options = {"only": {"outcome": ["failed", "timeout"], "site_id": ["A"]}}
    found = await usages(store, [*jobs, job("unknown", {"Cores": 9}, site_id="A", user_id="ann")], options)
    assert {who.user: usage.core_time for who, usage in found.items()} == {"ann": 4 * 3_600, "bob": 12 * 3_600}
    report = report_on(found, UtilisationConfig.model_validate(options), PERIOD)
    assert report.notes[0] == "Only jobs whose outcome is failed or timeout; site_id is A."


def floats(*figures: Fraction | None) -> list[float | None]:
    return [None if figure is None else float(figure) for figure in figures]


def auditors(figures: Totals) -> tuple[float, ...]:
    shown = (figures.khs23h, figures.cpu_efficiency, figures.core_hours, figures.energy, figures.co2)
    return tuple([float(each) for each in shown if each is not None])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"energy": {"watt_per_core": 10, "pue": 1.5, "co2_per_kwh": 0.4}},
        {"components": {"cpu_time": None, "memory_peak": None, "energy": None, "gpus": None}},
        {"components": {"cpu_time_unit": "ms", "memory": None}, "sites": ["B"]},
        {"user_keys": ["VOMS"], "benchmark": "HS06"},
    ],
)
async def test_every_store_gives_the_sums_of_a_plain_evaluation(store: RecordStore, options: dict[str, Any]) -> None:
    assert await usages(store, mixed_jobs(), options)


async def test_days_of_the_grid_are_kept_apart_by_every_store(store: RecordStore) -> None:
    options: dict[str, Any] = {"energy": {"watt_per_core": 1000}}
    found = await usages(store, mixed_jobs(), options, SERIES)
    ann = found[Who("A", "physics", "ann")]
    assert ann.co2 == Fraction(3, 8)  # stopped at midnight, so on two days: the mean of 1/4 and 1/2
    bob = found[Who("A", "physics", "bob")]
    assert (bob.co2_core_time, bob.energy_core_time) == (0, bob.core_time)  # began before the first known day


async def test_what_is_known_of_some_jobs_is_kept_apart(store: RecordStore) -> None:
    options: dict[str, Any] = {"energy": {"watt_per_core": 100, "pue": "1.5"}}
    found = await usages(store, mixed_jobs(), options)
    dan = totals_of(found[Who("B", "chemistry", "dan")])
    assert floats(dan.memory_requested, dan.memory_used, dan.memory_efficiency) == [4, 1, 0.25]
    assert floats(dan.energy, dan.measured_core_hours) == [3, 2]  # 2 kWh measured, and not 0.2 kWh estimated
    cat = totals_of(found[Who("B", "chemistry", "cat")])
    assert floats(cat.cpu_efficiency, cat.untimed_core_hours, cat.gpu_hours, cat.energy) == [0.25, 8, 4, 1.5]
    peak_alone = totals_of(found[Who("B", None, "dan")])
    assert peak_alone.memory_efficiency is None
    coreless = totals_of(found[Who("B", "physics", None)])
    assert (coreless.cpu_efficiency, coreless.core_hours) == (None, None)


async def test_requested_memory_is_known_without_its_peak(store: RecordStore) -> None:
    jobs = [
        job("both", {"Cores": 1, "Memory": 4_096, "MaxRSS": 2**30}, user_id="ann"),
        job("peakless", {"Cores": 1, "Memory": 2_048}, user_id="bob"),
        job("none", {"Cores": 1}, user_id="cat"),
    ]
    found = {who.user: usage for who, usage in (await usages(store, jobs, {})).items()}
    rows = {user: totals_of(usage) for user, usage in found.items()}
    assert floats(*(rows[user].memory_requested for user in ("ann", "bob", "cat"))) == [4, 2, None]
    assert floats(rows["bob"].unmeasured_memory, rows["bob"].memory_used, rows["bob"].idle_memory) == [2, None, None]
    report = report_on({Who(None, None, user): each for user, each in found.items()}, UtilisationConfig(), PERIOD)
    total = report.total.totals
    assert floats(total.memory_requested, total.idle_memory, total.memory_efficiency) == [6, 3, 0.25]
    assert {
        "Possible savings: 3.0 of 4.0 GiB hours of memory were never used.",
        "2.0 of 6.0 GiB hours of memory belong to jobs without a known peak and are not in the memory efficiency.",
        "1 of 3 jobs has no requested memory: its GiB hours are unknown and left out.",
    } <= {*report.notes}
    (header, line, *_) = csv.reader(as_csv(report).splitlines())
    assert dict(zip(header, line, strict=True))["memory_requested_gib_hours"] == "6.0"


async def test_requested_memory_is_known_without_a_component_for_peaks(store: RecordStore) -> None:
    jobs = [job("a", {"Cores": 1, "Memory": 2_048, "MaxRSS": 2**30}, user_id="ann")]
    (usage,) = (await usages(store, jobs, {"components": {"memory_peak": None}})).values()
    assert floats(totals_of(usage).memory_requested, totals_of(usage).memory_efficiency) == [2, None]


async def test_efficiency_is_weighted(store: RecordStore) -> None:
    found = await usages(store, mixed_jobs(), {"levels": ["site"]})
    physics = found[Who("A", "physics", "ann")] + found[Who("A", "physics", "bob")]
    assert totals_of(physics).cpu_efficiency == Fraction(1, 10_001)  # the mean of days would be one half


async def test_a_month_is_of_utc_and_half_open(store: RecordStore) -> None:
    found = await usages(store, mixed_jobs(), {})
    assert sum(usage.jobs for usage in found.values()) == len(mixed_jobs()) - 3
    assert sum(totals_of(usage).core_hours or 0 for usage in found.values()) < 11_000
