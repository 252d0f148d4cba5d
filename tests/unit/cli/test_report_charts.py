"""Charts of reports in a terminal."""

from datetime import UTC, datetime, timedelta

import pytest

from auditord.cli.report import Answered, write_chart
from auditord.reporting import MEASURES, Question
from auditord.reporting.report import make_report
from auditord_hookspecs import Component, Record
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.query import Window
from tests.summed_records import aggregate_records

YEAR = Window(datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("columns", [20, 60, 200])
@pytest.mark.parametrize("unit", [None, CalendarUnit.DAY, CalendarUnit.MONTH])
def test_no_figure_of_a_chart_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, unit: CalendarUnit | None, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    start = datetime(2026, 1, 10, tzinfo=UTC)
    records = [
        Record(name, start, (Component("Cores", cores, ()),), start + timedelta(hours=1), {"group_id": (name,)})
        for name, cores in (("large", 987_654_321_012_345_678), ("a group with a very long name", 3))
    ]
    question = Question((MEASURES["core-hours"],), "group", unit, YEAR, now=start)
    write_chart(Answered(make_report(question, aggregate_records(records, question.query())), ()), None)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith(" 987,654,321,012,345,678") for line in lines)  # of the row, perhaps in the legend
    start_of_bar = {None: "large  ", CalendarUnit.DAY: "2026-01-10  "}.get(unit, "2026-01-01  ")
    bar = next(line for line in lines if line.startswith(start_of_bar))
    figure = {None: "987,654,321,012,345,678", CalendarUnit.DAY: "987,654,321,012,345,681"}.get(
        unit, "987,654,321,012,345,681 (to 10 Jan)"
    )
    assert bar.endswith(f" {figure}")
    assert (len(bar) <= min(columns, 100), "█" in bar) == (columns > 40, columns > 40)
