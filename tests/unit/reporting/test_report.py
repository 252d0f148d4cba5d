"""Reports of sums: measures, bins, totals that add up, pledges."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from itertools import pairwise
from xml.etree.ElementTree import fromstring
from zipfile import ZipFile
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from auditord.reporting import MEASURES, Question, Report
from auditord.reporting.measures import UNKNOWN
from auditord.reporting.periods import PERIODS, month_of, previous_period, up_to_same_day, year_before, year_of
from auditord.reporting.pledges import Pledge, Scope, compare_with_pledges, remark_on_pledges, sum_pledges
from auditord.reporting.questions import UnknownCo2
from auditord.reporting.report import condense, make_report, parts_of
from auditord.reporting.writing import Gathering, Grid, csv_pieces, grid_of, json_pieces, write_parquet, write_xlsx
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.query import Window
from tests.summed_records import aggregate_records

BEGIN = datetime(2026, 1, 10, tzinfo=UTC)
YEAR = Window(datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))


def job(name: str, day: int, hours: int, cores: int, group: str | None, *, cpu: int | None = None) -> Record:
    start = BEGIN + timedelta(days=day)
    components = [Component("Cores", cores, (Score("HEPscore23", 12.5),))]
    components += [] if cpu is None else [Component("TotalCPU", cpu, ())]
    meta: dict[str, tuple[str, ...]] | None = None if group is None else {"group_id": (group,)}
    return Record(name, start, tuple(components), start + timedelta(hours=hours), meta)


JOBS = [
    job("a", 0, 10, 4, "atlas", cpu=36_000 * 2),
    job("b", 25, 1, 1, "atlas"),
    job("c", 80, 2, 3, "belle", cpu=3_600),
    job("d", 80, 1, 1, None),
    job("e", 400, 1, 1, "belle"),
]


def report(*names: str, by: str | None = "group", unit: CalendarUnit | None = None) -> Report:
    question = Question(tuple(MEASURES[name] for name in names), by, unit, YEAR)
    return make_report(question, aggregate_records(JOBS, question.query()))


def totals(made: Report) -> dict[str | None, Sequence[object]]:
    return {row.label: [figure.value for figure in row.total] for row in made.rows}


def test_rows_are_the_largest_first_and_add_up() -> None:
    made = report("core-hours", "jobs")
    assert totals(made) == {"atlas": [41, 2], "belle": [6, 1], None: [1, 1]}
    assert [row.label for row in made.rows] == ["atlas", "belle", None]
    assert [figure.value for figure in made.total] == [48, 4]


def test_the_efficiency_is_that_of_the_jobs_whose_cpu_time_is_known() -> None:
    made = report("cpu-efficiency", "idle-core-hours", "core-hours")
    assert totals(made)["atlas"] == [50, 20, 41]
    assert totals(made)[None] == [None, None, 1]
    assert [figure.value for figure in made.total] == [Fraction(2_100, 46), 25, 48]


def test_cpu_time_of_jobs_without_cores_is_in_no_efficiency() -> None:
    coreless = Record("x", JOBS[0].start_time, (Component("TotalCPU", 7_200, ()),), JOBS[0].stop_time, JOBS[0].meta)
    question = Question((MEASURES["cpu-efficiency"], MEASURES["idle-core-hours"], MEASURES["cpu-hours"]), "group")
    made = make_report(question, aggregate_records([*JOBS, coreless], question.query()))
    assert totals(made)["atlas"] == [50, 20, 22]


def test_core_hours_are_weighted_by_the_score() -> None:
    assert totals(report("score-hours"))["atlas"] == [Fraction(125, 10) * 41]


def test_bins_have_no_gaps_and_hold_all_of_the_rows() -> None:
    made = report("core-hours", unit=CalendarUnit.MONTH)
    assert made.bins == (date(2026, 1, 1), date(2026, 2, 1), date(2026, 3, 1))
    assert [made.totals[begin][0].value for begin in made.bins] == [40, 1, 7]
    far = Question((MEASURES["jobs"],), None, CalendarUnit.YEAR)
    assert make_report(far, aggregate_records(JOBS, far.query())).bins == (date(2026, 1, 1), date(2027, 1, 1))


def test_a_user_of_two_groups_counts_once_in_the_total() -> None:
    jobs = [
        replace(each, meta={**(each.meta or {}), **({} if user is None else {"user_id": (user,)})})
        for each, user in zip(JOBS, ("alice", "bob", "alice", None, "carol"), strict=True)
    ]
    question = Question((MEASURES["active-users"], MEASURES["jobs"]), "group", CalendarUnit.MONTH)
    made = make_report(question, aggregate_records(jobs, question.query()))
    assert totals(made) == {"atlas": [2, 2], "belle": [2, 2], None: [0, 1]}
    assert [figure.value for figure in made.total] == [3, 5]
    rows, rest, _ = made.largest(1)
    assert rest is not None
    assert [row.label for row in rows] == ["atlas"]
    assert rest.total[0].value == 2
    gathering = Gathering(question)
    gathering.add(aggregate_records(jobs[:2], question.query()))
    gathering.add(aggregate_records(jobs[2:], question.query()))
    assert gathering.grid().totals.total == (3, 5)


def test_means_are_of_the_jobs_that_have_the_quantity() -> None:
    def waited(record: Record, seconds: int) -> Record:
        return replace(record, components=(*record.components, Component("WaitTime", seconds, ())))

    jobs = [waited(JOBS[0], 7_200), waited(JOBS[1], 0), *JOBS[2:]]
    names = ("wait-per-job", "core-hours-per-job", "cores-per-job", "cpu-efficiency", "jobs")
    question = Question(tuple(MEASURES[name] for name in names), "group", None, YEAR)
    made = make_report(question, aggregate_records(jobs, question.query()))
    assert totals(made)["atlas"] == [1, Fraction(41, 2), Fraction(41, 11), 50, 2]
    assert totals(made)["belle"][:3] == [None, 6, 3]
    assert made.total[0].value == 1


def test_rows_of_two_labels_have_one_value_of_either() -> None:
    question = Question((MEASURES["jobs"],), "group", None, YEAR, then="size")
    made = make_report(question, aggregate_records(JOBS, question.query()))
    assert {row.labels: row.total[0].value for row in made.rows} == {
        ("atlas", "3-4"): 1,
        ("atlas", "1"): 1,
        ("belle", "3-4"): 1,
        (None, "1"): 1,
    }
    assert {row.name for row in made.rows} == {"atlas · 3-4", "atlas · 1", "belle · 3-4", "(none) · 1"}
    assert "".join(csv_pieces(grid_of(made))).splitlines()[0] == "group,size,jobs"
    assert json.loads("".join(json_pieces(grid_of(made))))["rows"][0].keys() == {"label", "then", "total", "bins"}


def test_the_use_of_a_pledge_is_that_of_each_row() -> None:
    pledges = [
        Pledge(Scope(None, group), None, Fraction(power), date(2026, 1, 1), date(2027, 1, 1))
        for group, power in (("atlas", 1), (None, 4))
    ]
    made = report("core-hours")
    found, hours = compare_with_pledges(pledges, made.question, [*made.rows, made.whole]), 365 * 24
    assert [row.label for row in made.rows] == ["atlas", "belle", None]
    assert found == [100 * Fraction(41) / hours, None, None, 100 * Fraction(48) / (4 * hours)]
    assert compare_with_pledges((), made.question, made.rows) == [None, None, None]
    assert compare_with_pledges(pledges, made.question, [replace(made.whole, labels=("atlas",), total=(UNKNOWN,))]) == [
        None
    ], "not 0 %"


def test_usage_of_days_without_their_pledge_is_not_compared() -> None:
    def pledge(group: str | None, first: date, end: date) -> Pledge:
        return Pledge(Scope("KIT", group), None, Fraction(2), first, end)

    january, october, end = date(2026, 1, 1), date(2026, 10, 16), date(2027, 1, 1)
    ended = [pledge("atlas", january, october), pledge("belle", january, end)]
    made = report("core-hours")
    rows = [row.labels for row in made.rows]
    used = compare_with_pledges(ended, made.question, [*made.rows, made.whole])
    # atlas has no pledge for its last jobs, so the whole is not compared either
    assert used == [None, 100 * Fraction(6) / (2 * 365 * 24), None, None]
    remark = "Not compared, since the pledge covers only part of the period: atlas at KIT, 1 Jan 2026 to 15 Oct 2026"
    assert remark_on_pledges(ended, made.question) == remark
    whole = [pledge(None, january, end), *ended]
    assert (remark_on_pledges(whole, made.question), remark_on_pledges(whole, made.question, rows)) == (None, remark)
    renewed = [*ended, pledge("atlas", october, end)]
    assert remark_on_pledges(renewed, made.question, rows) is None
    assert compare_with_pledges(renewed, made.question, made.rows[:1]) == [100 * Fraction(41) / (2 * 365 * 24)]


def test_job_sizes_are_in_classes() -> None:
    assert totals(report("jobs", by="size")) == {"1": [2], "3-4": [2]}


def test_what_is_not_among_the_largest_is_one_row() -> None:
    rows, rest, count = report("core-hours").largest(1)
    assert ([row.label for row in rows], count) == (["atlas"], 2)
    assert rest is not None
    assert rest.total[0].value == 7


@pytest.mark.parametrize("name", ["core-hours", "score-hours", "cpu-efficiency"])
def test_the_bins_of_the_largest_rows_are_those_of_the_whole_report(name: str) -> None:
    """Also those of all others together, which nobody has asked for one by one."""
    whole = report(name, unit=CalendarUnit.MONTH)
    chosen = replace(whole.question, labels=("atlas",))
    named = make_report(chosen, aggregate_records(JOBS, chosen.query()))
    made = condense(report(name), named, report(name, by=None, unit=CalendarUnit.MONTH), 1)
    assert (made.bins, made.totals, made.total) == (whole.bins, whole.totals, whole.total)
    (row,), rest, count = made.largest(1)
    (wanted,), others, number = whole.largest(1)
    assert rest is not None
    assert others is not None
    assert (row.label, dict(row.cells), row.total) == (wanted.label, dict(wanted.cells), wanted.total)
    assert (dict(rest.cells), rest.total, count) == (dict(others.cells), others.total, number)


def test_filters_choose_values_and_records_without_any() -> None:
    for value, jobs in (("belle", 1), ("", 1), ("cms", None)):
        question = Question((MEASURES["jobs"],), None, None, YEAR, (("group", value),))
        made = make_report(question, aggregate_records(JOBS, question.query()))
        assert [row.total[0].value for row in made.rows] == ([] if jobs is None else [jobs])


@pytest.mark.parametrize("unit", list(CalendarUnit))
def test_a_bin_ends_where_the_next_one_begins(unit: CalendarUnit) -> None:
    first = unit.first_day(date(2024, 1, 1))
    for _ in range(60):
        following_one = unit.next_first_day(first)
        assert unit.first_day(following_one - timedelta(days=1)) == first
        assert unit.first_day(following_one) == following_one
        first = following_one


def test_periods_end_behind_the_present() -> None:
    now = datetime(2026, 3, 31, 23, 30, tzinfo=UTC)
    assert PERIODS["12-months"](now) == Window(datetime(2025, 4, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC))
    assert PERIODS["7-days"](now) == Window(datetime(2026, 3, 25, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC))
    assert PERIODS["last-month"](now) == Window(datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC))
    assert PERIODS["this-quarter"](now) == Window(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC))
    assert PERIODS["last-quarter"](now) == Window(datetime(2025, 10, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))
    assert previous_period(PERIODS["this-quarter"](now)) == PERIODS["last-quarter"](now)
    assert previous_period(month_of(now)) == PERIODS["last-month"](now)
    assert previous_period(PERIODS["7-days"](now)).start == datetime(2026, 3, 18, tzinfo=UTC)


def test_a_period_that_goes_on_is_compared_with_as_many_days() -> None:
    now = datetime(2026, 3, 31, 23, 30, tzinfo=UTC)
    year, february = year_of(now), previous_period(month_of(now))
    assert up_to_same_day(previous_period(year), year, now) == Window(
        datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 4, 1, tzinfo=UTC)
    )
    assert up_to_same_day(february, month_of(now), now) == february  # it has not as many days
    week = PERIODS["7-days"](now)
    assert up_to_same_day(previous_period(week), week, now) == previous_period(week)
    assert up_to_same_day(previous_period(february), february, now) == previous_period(february)
    assert up_to_same_day(week, Window(week.stop, week.stop + timedelta(days=7)), now) == week


def test_a_year_before_has_the_same_days() -> None:
    now = datetime(2024, 3, 1, 12, tzinfo=UTC)
    assert year_before(Window(datetime(2024, 2, 29, tzinfo=UTC), datetime(2024, 3, 2, tzinfo=UTC))) == Window(
        datetime(2023, 2, 28, tzinfo=UTC), datetime(2023, 3, 2, tzinfo=UTC)
    )
    assert year_before(PERIODS["12-months"](now)) == previous_period(PERIODS["12-months"](now))
    summer = month_of(datetime(2026, 7, 3, tzinfo=BERLIN))
    assert year_before(summer).start.astimezone(UTC) == datetime(2025, 6, 30, 22, tzinfo=UTC)


BERLIN = ZoneInfo("Europe/Berlin")


def test_periods_are_those_of_the_zone_of_the_instant() -> None:
    now = datetime(2026, 3, 31, 22, 30, tzinfo=UTC).astimezone(BERLIN)  # there it is April already
    assert PERIODS["this-month"](now) == Window(
        datetime(2026, 3, 31, 22, tzinfo=UTC).astimezone(BERLIN),
        datetime(2026, 4, 30, 22, tzinfo=UTC).astimezone(BERLIN),
    )
    march = PERIODS["last-month"](now)
    assert march.start.astimezone(UTC) == datetime(2026, 2, 28, 23, tzinfo=UTC)  # in winter time
    assert previous_period(march).start.astimezone(UTC) == datetime(2026, 1, 31, 23, tzinfo=UTC)
    assert previous_period(PERIODS["7-days"](now)).start.astimezone(UTC) == datetime(2026, 3, 18, 23, tzinfo=UTC)


@pytest.mark.parametrize(("month", "hours"), [(3, 743), (4, 720), (10, 745)])
def test_a_pledge_lasts_as_long_as_the_days_of_the_zone(month: int, hours: int) -> None:
    span = month_of(datetime(2026, month, 15, tzinfo=BERLIN))
    question = Question((MEASURES["core-hours"],), None, None, span, (("site", "DESY"),), zone="Europe/Berlin")
    assert sum_pledges(PLEDGES, question, span) == hours


PLEDGES = [
    Pledge(Scope("KIT", None), None, Fraction(10), date(2026, 1, 1), date(2026, 1, 11)),
    Pledge(Scope("KIT", "belle"), None, Fraction(4), date(2026, 1, 1), date(2027, 1, 1)),
    Pledge(Scope("DESY", "belle"), None, Fraction(1), date(2026, 1, 1), date(2027, 1, 1)),
    Pledge(Scope("KIT", None), "HEPscore23", Fraction(99), date(2026, 1, 1), date(2027, 1, 1)),
]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ((), None),
        ((("site", "KIT"),), None),
        ((("site", "KIT"), ("group", "belle")), 4 * 365 * 24),
        ((("group", "belle"),), 5 * 365 * 24),
        ((("group", "atlas"),), None),
        ((("user", "alice"),), None),
    ],
)
def test_pledges_are_for_what_is_asked_about(filters: tuple[tuple[str, str], ...], expected: int | None) -> None:
    question = Question((MEASURES["core-hours"],), None, None, YEAR, filters)
    assert sum_pledges(PLEDGES, question, YEAR) == expected


@pytest.mark.parametrize(
    ("filters", "power"),
    [((), 100), ((("group", "belle"),), 30), ((("site", "KIT"),), 40), ((("site", "KIT"), ("group", "belle")), 4)],
)
def test_a_pledge_to_all_sites_includes_those_to_single_sites(filters: tuple[tuple[str, str], ...], power: int) -> None:
    scopes = {Scope(None, None): 100, Scope(None, "belle"): 30, Scope("KIT", None): 40, Scope("KIT", "belle"): 4}
    pledges = [
        Pledge(scope, None, Fraction(cores), YEAR.start.date(), YEAR.stop.date()) for scope, cores in scopes.items()
    ]
    question = Question((MEASURES["core-hours"],), None, None, YEAR, filters)
    assert sum_pledges(pledges, question, YEAR) == power * 365 * 24


@pytest.mark.parametrize(
    ("start", "stop", "hours"),
    [
        ("2026-10-24T18:00:00+02:00", "2026-10-25T06:00:00+01:00", 13),  # the clocks are set back in this night
        ("2026-10-24T06:00:00+02:00", "2026-10-24T18:30:00+02:00", Fraction(25, 2)),
        ("2026-12-31T23:00:00+01:00", "2027-01-01T00:00:00+01:00", 1),
        ("2026-12-31T23:00:00+01:00", "2027-01-02T00:00:00+01:00", None),
        ("2027-01-01T06:00:00+01:00", "2027-01-01T18:00:00+01:00", None),
    ],
)
def test_a_pledge_to_a_part_of_a_day_has_its_hours(start: str, stop: str, hours: Fraction | None) -> None:
    span = Window(*(datetime.fromisoformat(each).astimezone(BERLIN) for each in (start, stop)))
    question = Question((MEASURES["core-hours"],), window=span, filters=(("site", "DESY"),), zone="Europe/Berlin")
    assert sum_pledges(PLEDGES, question, span) == hours


def test_a_pledge_has_the_unit_of_the_measure() -> None:
    weighted = Question((MEASURES["score-hours"],), window=YEAR)
    assert sum_pledges(PLEDGES, weighted, YEAR) == 99 * 365 * 24
    assert sum_pledges(PLEDGES, Question((MEASURES["jobs"],), window=YEAR), YEAR) is None


def cells(sheet: bytes) -> list[list[str]]:
    """The values of a sheet as they are written: numbers, or places among the shared texts."""
    rows = fromstring(sheet).findall(".//{*}row")  # noqa: S314 our own
    return [["".join(cell.itertext()) for cell in row] for row in rows]


def test_co2_is_measured_energy_times_the_intensity_of_the_grid() -> None:
    parts = (Component("Energy", 7_200_000, ()), Component("WaitTime", 5_400, ()))
    records = [Record("a", BEGIN, parts, BEGIN + timedelta(hours=1)), job("b", 0, 1, 1, None)]
    question = Question((MEASURES["co2"], MEASURES["energy"], MEASURES["waiting-hours"]), co2_per_kwh=Fraction(19, 50))
    total = make_report(question, aggregate_records(records, question.query())).total
    assert [each.value for each in total] == [Fraction(19, 25), 2, Fraction(3, 2)]
    with pytest.raises(UnknownCo2, match=r"ui\.co2_per_kwh, or use --co2-per-kwh"):
        Question((MEASURES["co2"],)).query()


def test_a_workbook_has_numbers_and_no_formulas() -> None:
    made = report("core-hours", unit=CalendarUnit.MONTH)
    with ZipFile(written(write_xlsx, grid_of(made))) as file:
        sheet, about = (file.read(f"xl/worksheets/sheet{number}.xml") for number in (1, 2))
    assert b"<f>" not in sheet
    known = {text for part in (sheet, about) for text in fromstring(part).itertext()}  # noqa: S314 our own
    assert {"group", "total", "atlas", "belle", "2026-01-01", "Core hours", "core h"} <= known
    found = cells(sheet)
    totals = [float(line[1]) for line in found[1:]]
    assert len(found) == 1 + len(made.rows) + 1
    assert sum(totals[:-1]) == pytest.approx(totals[-1])
    assert totals[-1] == pytest.approx(float(made.total[0].value or 0))
    with ZipFile(written(write_xlsx, grid_of(report("core-hours", "jobs")))) as file:
        assert {len(line) for line in cells(file.read("xl/worksheets/sheet1.xml"))} == {3}


@pytest.mark.parametrize(
    ("names", "by"),
    [
        (("core-hours",), "group"),
        (("cpu-efficiency",), "group"),
        (("jobs", "cpu-efficiency"), "size"),
        (("jobs",), None),
    ],
)
def test_a_report_gathered_by_parts_of_its_period_is_the_whole_one(names: Sequence[str], by: str | None) -> None:
    measures = tuple(MEASURES[name] for name in names)
    question = Question(measures, by, CalendarUnit.MONTH, Window(YEAR.start, datetime(2027, 5, 1, tzinfo=UTC)))
    gathering, ends = Gathering(question), [date(2026, 1, 1), date(2026, 3, 1), date(2027, 1, 1), date(2027, 5, 1)]
    for first, end in pairwise(datetime.combine(day, time.min, UTC) for day in ends):
        part = replace(question, window=Window(first, end))
        gathering.add(aggregate_records(JOBS, part.query()))
    assert gathering.size == ({"group": 3, "size": 2, None: 1}[by], 14)
    for form in (csv_pieces, json_pieces):
        whole = grid_of(make_report(question, aggregate_records(JOBS, question.query())))
        assert "".join(form(gathering.grid())) == "".join(form(whole))


def written(steps: Callable[[Grid, io.BytesIO], Iterator[None]], grid: Grid) -> io.BytesIO:
    out = io.BytesIO()
    assert len(list(steps(grid, out))) <= 1  # of few cells
    return out


def test_a_workbook_has_every_bin_of_more_days_than_a_sheet_has_columns() -> None:
    question = Question((MEASURES["core-hours"],), "group", CalendarUnit.DAY)
    epoch = Record("epoch", datetime(1970, 1, 1, tzinfo=UTC), (), datetime(1970, 1, 1, 1, tzinfo=UTC))
    made = make_report(question, aggregate_records([epoch, *JOBS], question.query()))
    assert len(made.bins) > 20_000
    out = io.BytesIO()
    for _ in write_xlsx(grid_of(made), out):
        pass
    with ZipFile(out) as file:
        found = cells(file.read("xl/worksheets/sheet1.xml"))
    assert len(found) == 1 + 6  # a line for each row and bin that have records


def test_every_form_says_the_same() -> None:
    made = report("core-hours", "cpu-efficiency", unit=CalendarUnit.MONTH)
    rows = list(csv.reader(csv_pieces(grid_of(made))))
    assert rows[0] == ["month", "group", "core-hours", "cpu-efficiency", "partial"]
    assert ["2026-01-01", "atlas", "40", "50", ""] in rows
    assert ["2026-03-01", "", "1", "", ""] in rows
    document = json.loads("".join(json_pieces(grid_of(made))))
    assert document["total"] == {"core-hours": 48, "cpu-efficiency": 45.652174}
    assert document["rows"][0]["bins"]["2026-02-01"] == {"core-hours": 1, "cpu-efficiency": None}
    assert document["units"]["cpu-efficiency"] == "%"
    parquet = pytest.importorskip("pyarrow.parquet").read_table(written(write_parquet, grid_of(made)))
    assert sum(parquet.column("core-hours").to_pylist()) == 48


@pytest.mark.parametrize("score", [1.7976931348623157e308, 1e40])
def test_an_absurd_score_spoils_no_form(score: float) -> None:
    question = Question((MEASURES["score-hours"], MEASURES["core-hours"]), "group", CalendarUnit.MONTH)
    parts = (Component("Cores", 8, (Score("HEPscore23", score),)),)
    absurd = Record("absurd", BEGIN, parts, BEGIN + timedelta(hours=1), {"group_id": ("absurd",)})
    made = make_report(question, aggregate_records([*JOBS, absurd], question.query()))
    assert [row.label for row in made.rows] == ["absurd", "atlas", "belle", None]
    rows = list(csv.reader(csv_pieces(grid_of(made))))
    assert [float(row[2]) for row in rows if row[1] == "absurd"] == [min(8 * score, 1e300)]
    assert json.loads("".join(json_pieces(grid_of(made))))["rows"][1]["total"]["core-hours"] == 41
    written(write_xlsx, grid_of(made))
    parquet = pytest.importorskip("pyarrow.parquet").read_table(written(write_parquet, grid_of(made)))
    assert parquet.column("score-hours").to_pylist()[0] == min(8 * score, 1e300)


def test_a_label_with_a_line_break_is_no_row_of_its_own_in_csv() -> None:
    question, labels = Question((MEASURES["jobs"],), "group"), ["atlas\rbelle", "atlas\nbelle", "atlas\r\nbelle"]
    records = [job(label, 0, 1, 1, label) for label in labels]
    text = "".join(csv_pieces(grid_of(make_report(question, aggregate_records(records, question.query())))))
    assert list(csv.reader(io.StringIO(text, newline="")))[1:] == [[label, "1"] for label in sorted(labels)]


def test_a_label_that_looks_like_a_formula_is_escaped_in_csv() -> None:
    question = Question((MEASURES["jobs"],), "group")
    made = make_report(question, aggregate_records([job("x", 0, 1, 1, "=1+1")], question.query()))
    assert list(csv_pieces(grid_of(made)))[1] == "'=1+1,1\n"


def test_the_name_of_a_label_is_no_formula_in_the_header() -> None:
    question = Question((MEASURES["jobs"],), "meta:x;=1")
    made = make_report(question, aggregate_records([job("x", 0, 1, 1, "y")], question.query()))
    assert next(csv_pieces(grid_of(made))) == '"meta:x;\'=1",jobs\n'


@pytest.mark.parametrize(
    ("unit", "window", "zone", "now", "parts"),
    [
        (
            CalendarUnit.WEEK,
            ("2026-10-29", "2026-11-28"),
            "UTC",
            None,
            {"2026-10-26": "from 29 Oct", "2026-11-23": "to 27 Nov"},
        ),
        (CalendarUnit.WEEK, ("2026-11-17", "2026-11-20"), "UTC", None, {"2026-11-16": "17 Nov to 19 Nov"}),
        (CalendarUnit.WEEK, ("2026-11-17", "2026-11-18"), "UTC", None, {"2026-11-16": "17 Nov"}),
        (CalendarUnit.MONTH, ("2026-10-01", "2026-12-01"), "UTC", "2026-11-10", {"2026-11-01": "to 10 Nov"}),
        (CalendarUnit.MONTH, ("2026-10-01", "2026-12-01"), "UTC", "2026-11-30", {}),
        (CalendarUnit.MONTH, ("2026-10-01", "2026-11-05"), "UTC", "2026-11-10", {"2026-11-01": "to 4 Nov"}),
        (CalendarUnit.WEEK, ("2026-10-19", "2026-11-02"), "Europe/Berlin", None, {}),
        (CalendarUnit.DAY, ("2026-10-29", "2026-11-28"), "UTC", "2026-11-10", {}),
    ],
)
def test_bins_of_which_there_is_only_a_part(
    unit: CalendarUnit, window: tuple[str, str], zone: str, now: str | None, parts: dict[str, str]
) -> None:
    begin, end = (datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)) for day in window)
    moment = None if now is None else datetime.fromisoformat(now).replace(tzinfo=UTC)
    question = Question((MEASURES["jobs"],), None, unit, Window(begin, end), zone=zone, now=moment)
    bins = [unit.first_day(begin.date())]
    while (following := unit.next_first_day(bins[-1])) < end.date():
        bins.append(following)
    assert {first.isoformat(): part.text() for first, part in parts_of(question, bins).items()} == parts


def test_files_name_the_days_of_partial_bins() -> None:
    jobs = [job("a", day, 1, 1, "atlas") for day in range(14)]
    question = Question(
        (MEASURES["jobs"],), None, CalendarUnit.WEEK, Window(BEGIN + timedelta(days=1), BEGIN + timedelta(days=10))
    )
    made = make_report(question, aggregate_records(jobs, question.query()))
    assert list(csv.reader(csv_pieces(grid_of(made))))[1:] == [
        ["2026-01-05", "1", "from 2026-01-11"],
        ["2026-01-12", "7", ""],
        ["2026-01-19", "1", "to 2026-01-19"],
    ]
    assert json.loads("".join(json_pieces(grid_of(made))))["partial"] == {
        "2026-01-05": {"from": "2026-01-11"},
        "2026-01-19": {"to": "2026-01-19"},
    }
    with ZipFile(written(write_xlsx, grid_of(made))) as book:
        assert "2026-01-05 (from 2026-01-11)" in book.read("xl/worksheets/sheet1.xml").decode()
