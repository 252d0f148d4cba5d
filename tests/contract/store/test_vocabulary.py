"""Core hours are the same everywhere, in whichever form records have them: compared with a plain ledger."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auditord.client.aggregates import Adder
from auditord.client.frames import to_arrow
from auditord.client.site_reports import day_sums, sums_query
from auditord.reporting.measures import MEASURES
from auditord.reporting.questions import Question
from auditord.reporting.report import make_report
from auditord.store import Duplicates, Provenance
from auditord.store.reading import StoredRecords
from auditord.testing import FakePluginContext
from auditord.web.page.jobs import job_row
from auditord_builtin.apel.jobs import job_row as apel_job
from auditord_builtin.apel.messages import JobRow
from auditord_builtin.apel.summaries import summaries
from auditord_builtin.priority.config import PriorityConfig
from auditord_builtin.priority.running import question, usage_in
from auditord_builtin.utilisation.config import UtilisationConfig
from auditord_builtin.utilisation.periods import Period
from auditord_builtin.utilisation.usage import Estimator
from auditord_builtin.utilisation.usage import Question as Utilisation
from auditord_builtin.waldur.usage import raw_usage
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    Component,
    ComponentUsage,
    MetaValue,
    Record,
    Score,
    Window,
)
from auditord_hookspecs.aggregates import exact_score
from auditord_hookspecs.mapping import ComponentRule, build_components
from auditord_hookspecs.months import Month
from auditord_hookspecs.query import match_stopped
from tests.builtin.apel.apel_settings import apel_settings
from tests.contract.store.conftest import StoreFactory
from tests.contract.store.feeds import settled
from tests.waldur_settings import waldur_config

pytestmark = pytest.mark.anyio

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
END: Final = datetime(2026, 6, 1, tzinfo=UTC)
HOUR: Final = 3_600
GROUPS: Final = ("atlas", "belle")
SCORES: Final = st.sampled_from([(Score("HEPscore23", 10.5),), (Score("HEPscore23", 1 / 3),)])
IN_MILLICORES: Final = ComponentRule(name="CoreSeconds", key="core_ms", factor=Decimal("0.001"))
CORE_HOURS: Final = (MEASURES["core-hours"], MEASURES["score-hours"])
Ledger: TypeAlias = Mapping[tuple[str, Month], Fraction]


@st.composite
def jobs(draw: st.DrawFn) -> Record:
    """A job with whole cores, or a pod with millicores, of a length that its start and stop do not show."""
    start = BEGIN + timedelta(days=draw(st.sampled_from([0, 30, 30, 31, 58, 89])), seconds=draw(st.integers(0, 90_000)))
    length = timedelta(microseconds=draw(st.sampled_from([0, 1, 999_999, 10**6, 36 * 10**8, 2_600_001_000_001])))
    scores, group = draw(SCORES), draw(st.sampled_from(GROUPS))
    if draw(st.booleans()):
        cores = Component("Cores", draw(st.integers(1, 64)), scores)
    else:
        row = {"core_ms": str(draw(st.integers(0, 64_000)) * max(length // timedelta(seconds=1), 1))}
        (made,) = build_components([IN_MILLICORES], row)
        cores = Component(made.name, made.amount, scores)
    meta: dict[str, tuple[str, ...]] = {
        "site_id": ("S",),
        "group_id": (group,),
        "account": (group,),
        "voms": (group,),
        "submit_host": ("ce",),
    }
    return Record(str(draw(st.uuids())), start, (cores, Component("TotalCPU", 0, ())), start + length, meta)


def entries(records: Sequence[Record]) -> Mapping[str, tuple[Fraction, Fraction]]:
    """The core-seconds of each record, by whole seconds of runtime and by its exact runtime."""
    found: dict[str, tuple[Fraction, Fraction]] = {}
    for record in records:
        (cores, _), stop = record.components, record.stop_time
        assert stop is not None
        exact = Fraction((stop - record.start_time) // timedelta(microseconds=1), 10**6)
        is_total = cores.name == "CoreSeconds"
        by_whole, by_exact = (Fraction(cores.amount) * (1 if is_total else time) for time in (int(exact), exact))
        found[record.record_id] = by_whole, by_exact
    return found


def ledger(records: Sequence[Record]) -> tuple[Ledger, Ledger]:
    """Core-seconds by group and month of the end, unweighted and weighted."""
    known, plain = entries(records), defaultdict[tuple[str, Month], Fraction](Fraction)
    weighted = defaultdict[tuple[str, Month], Fraction](Fraction)
    for record in records:
        assert record.meta is not None
        assert record.stop_time is not None
        key = record.meta["group_id"][0], Month.of(record.stop_time)
        plain[key] += known[record.record_id][0]
        weighted[key] += known[record.record_id][0] * Fraction(exact_score(record.components[0].scores[0].value))
    return plain, weighted


@given(records=st.lists(jobs(), min_size=1, max_size=12))
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_core_hours_are_the_same_everywhere(
    store_factory: Callable[[Path], StoreFactory], records: Sequence[Record]
) -> None:
    plain, weighted = ledger(records)
    with TemporaryDirectory() as folder:
        async with store_factory(Path(folder))() as store:
            await store.add_all(records, Provenance(BEGIN), Duplicates.SAME_RUN, atomic=True)
            stored = StoredRecords(store)
            for is_folded in (False, True):
                if is_folded:
                    await settled(store)
                    await store.catch_up()
                await check_sums(stored, records, plain, weighted)
            await check_plugins(stored, records, plain)
    check_records(records, plain)


async def check_sums(stored: StoredRecords, records: Sequence[Record], plain: Ledger, weighted: Ledger) -> None:
    """Check reports and the page, the client's own sums, and reports to a hub."""
    asked = Question(CORE_HOURS, "group", CalendarUnit.MONTH)
    report = make_report(asked, await stored.aggregate(asked.query()))
    found = {
        (row.label or "", Month.of(_instant(begin))): cell for row in report.rows for begin, cell in row.cells.items()
    }
    assert {key: cell[0].value for key, cell in found.items()} == {key: each / HOUR for key, each in plain.items()}
    for key, cell in found.items():
        assert (cell[1].value or 0) == weighted[key] / HOUR
    adder = Adder(asked.query())
    for record in records:
        adder.add(record)
    assert adder.answer() == await stored.aggregate(asked.query())
    assert sum(each.core_seconds for each in day_sums(await stored.aggregate(sums_query(date(2026, 1, 1))))) == sum(
        plain.values()
    )
    months = AggregateQuery(
        match_stopped(Window(BEGIN, END)),
        (MetaValue("group_id"), CalendarPeriod(CalendarUnit.MONTH, zone="Europe/Berlin")),
        (ComponentUsage("Cores"),),
    )
    answer = await stored.aggregate(months)
    assert sum(group.usage[0].sums.amount_runtime for group in answer.groups) == sum(plain.values())


def _instant(begin: date | None) -> datetime:
    assert begin is not None
    return datetime(begin.year, begin.month, begin.day, tzinfo=UTC)


async def check_plugins(stored: StoredRecords, records: Sequence[Record], plain: Ledger) -> None:
    """Check utilisation, priority, Waldur, whose months split jobs, and APEL."""
    by_group = {
        group: sum((each for (name, _), each in plain.items() if name == group), Fraction()) for group in GROUPS
    }
    options = UtilisationConfig.model_validate({})
    utilisation = Utilisation(options, Estimator(options.energy, None))
    usages = utilisation.usages(await stored.aggregate(utilisation.query(Period("all", BEGIN, END))))
    assert {who.group or "": each.core_time for who, each in usages.items()} == {
        group: each for group, each in by_group.items() if group in {name for name, _ in plain}
    }
    for combination in ("sum", "product"):
        priority = PriorityConfig.model_validate(
            {
                "components": {"Cores": None},
                "group_mapping": {group: [] for group in GROUPS},
                "component_combination": combination,
            }
        )
        log = FakePluginContext().log
        assert usage_in(priority, await stored.aggregate(question(priority, END)), log) == by_group
    waldur, minutes = waldur_config(), Fraction()
    for month in (Month(2026, number) for number in range(1, 6)):
        usage = await raw_usage(waldur, stored, month.window, as_of=END)
        minutes += sum((each["cpu"] for users in usage.values() for each in users.values()), Fraction())
    assert minutes * 60 == sum(exact for _, exact in entries(records).values())
    apel = apel_settings(sites={"S": ["S"]}, since=BEGIN)
    for month in {month for _, month in plain}:
        made = await summaries(apel, stored, "S", month)
        for group in GROUPS:
            found = sum(row.wall * row.processors for row in made.rows if row.vo == group)
            assert found == plain.get((group, month), 0)


def check_records(records: Sequence[Record], plain: Ledger) -> None:
    """Check tables, the page's list of jobs and APEL's individual jobs."""
    assert sum(to_arrow(records)["seconds.Cores"].to_pylist()) == sum(plain.values())
    apel = apel_settings(sites={"S": ["S"]}, since=BEGIN, jobs=True)
    for record in records:
        seconds = entries([record])[record.record_id][0]
        job = apel_job(apel, record)
        assert isinstance(job, JobRow)
        assert int(job.fields["WallDuration"]) * int(job.fields["Processors"]) == seconds
        shown = job_row(record, Question(CORE_HOURS).keys)["core_hours"]
        assert float(shown.replace(",", "").removeprefix("< ")) == pytest.approx(seconds / HOUR, abs=0.51)
