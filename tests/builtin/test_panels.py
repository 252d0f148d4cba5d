"""The panels of the built-in kinds, made of states as the kinds save them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from auditord.web.page.panels import DrawnPart, draw
from auditord_builtin import kubernetes
from auditord_builtin.apel.state import MonthState, ReportedState, SiteState, show_months
from auditord_builtin.kubernetes.following import Checkpoint as Positions
from auditord_builtin.kubernetes.following import Position
from auditord_builtin.priority.running import PriorityState, show_priorities
from auditord_builtin.slurm.collecting import Checkpoint, show_state
from auditord_builtin.utilisation.state import show_reports
from auditord_builtin.waldur.state import show_resources
from auditord_hookspecs import AggregateQuery, Aggregates, RunReport

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SHOWN = "2026-11-22 12:00:00"
RUN = RunReport("a", "slurm", NOW, timedelta(seconds=90), "no answer", 1_234, 2, {"never started": 3})


@dataclass
class SavedContext:
    """A panel's context with what an instance has saved."""

    saved: Any = None  # Any: JSON
    kept: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON
    instance: str | None = "a"
    config: Any = None  # Any: of no kind

    def now(self) -> datetime:
        return NOW

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        raise NotImplementedError

    async def state(self) -> Any:  # Any: JSON
        return self.saved

    async def pending(self) -> Mapping[str, Any]:  # Any: JSON
        return self.kept

    async def last_runs(self) -> Sequence[RunReport]:
        return [RUN]


def rows(parts: Sequence[DrawnPart]) -> list[list[str]]:
    return [list(row) for part in parts for row in part.rows]


RUNS = [SHOWN, "90.0", "1,234", "2", "3", "no answer"]


@pytest.mark.anyio
async def test_slurm_shows_how_far_it_has_read_and_its_runs() -> None:
    saved = msgspec.to_builtins(Checkpoint(NOW - timedelta(days=2), NOW, NOW - timedelta(days=1)))
    shown = rows(draw(await show_state(SavedContext(saved))))
    assert [row[1] for row in shown[:3]] == ["2026-11-20 12:00:00", SHOWN, "2026-11-21 12:00:00"]
    assert shown[3:] == [RUNS]
    assert [part.note for part in draw(await show_state(SavedContext()))] == ["It has not read anything yet."]


@pytest.mark.anyio
async def test_instants_are_in_the_zone_of_the_page() -> None:
    saved = msgspec.to_builtins(Checkpoint(NOW, NOW, NOW))
    shown = rows(draw(await show_state(SavedContext(saved)), ZoneInfo("Europe/Berlin")))
    assert [row[1] for row in shown[:3]] == ["2026-11-22 13:00:00"] * 3


@pytest.mark.anyio
async def test_kubernetes_shows_its_namespaces_and_pods() -> None:
    saved = msgspec.to_builtins(Positions(NOW, {"*": Position(NOW, "1"), "hep": Position(NOW, None)}))
    parts = draw(await kubernetes.show_state(SavedContext(saved)))
    assert parts[0].note == "Pods that run: 0. Pods that are over and wait for their metrics: 0."
    assert rows(parts) == [["all", SHOWN], ["hep", SHOWN], RUNS]


@pytest.mark.anyio
async def test_apel_shows_its_months() -> None:
    months = {
        "2026-09": MonthState(jobs=7, stored=7, reportable=7, acknowledged=NOW),
        "2026-10": MonthState(stored=9, reportable=8, problems=("KIT 2026-10: 1 job has no VO",)),
    }
    saved = msgspec.to_builtins(ReportedState(sites={"KIT": SiteState(months=months)}))
    chart, table, note = draw(await show_months(SavedContext(saved)))
    assert "KIT, 2026-09: 7 jobs" in str(chart.svg)
    assert rows([table]) == [
        ["KIT", "2026-10", "9", "8", "0", "0", "\N{EN DASH}"],
        ["KIT", "2026-09", "7", "7", "7", "0", SHOWN],
    ]
    assert note.note == "KIT 2026-10: 1 job has no VO"


@pytest.mark.anyio
async def test_priorities_are_shown_over_time() -> None:
    state = PriorityState()
    for number in range(500 * 4):  # every six hours, and not on one day
        moment = NOW - timedelta(hours=6 * (2_000 - number))
        if moment.date() != NOW.date() - timedelta(days=10):
            state = state.add_run({"atlas": Fraction(number), "belle": Fraction(99)}, moment)
    assert (len(state.runs), len(state.days)) == (12, 364)
    saved = msgspec.json.decode(msgspec.json.encode(state))
    assert len(msgspec.json.encode(state)) < 20_000
    table, runs, days = draw(await show_priorities(SavedContext(saved)))
    assert rows([table]) == [["atlas", "1,999"], ["belle", "99"]]
    assert str(runs.svg).count("<circle") == 2 * 12
    assert "atlas, 22 Nov 06:00: 1,999" in str(runs.svg)
    assert str(days.svg).count("<circle") == 2 * 364
    assert "atlas, 11 Nov 2026" in str(days.svg)
    assert "atlas, 12 Nov 2026" not in str(days.svg)


@pytest.mark.anyio
async def test_priorities_are_shown_from_the_highest() -> None:
    shown = draw(await show_priorities(SavedContext({"last": {"atlas": 10.5, "last": 99.4}})))
    assert rows(shown) == [["last", "99"], ["atlas", "11"]]
    assert [part.note for part in draw(await show_priorities(SavedContext()))] == ["No priority has been set yet."]


@pytest.mark.anyio
async def test_other_plugins_show_what_they_have_saved() -> None:
    refused = {"2026-10-01 ab12": {"at": NOW.isoformat()}}
    amounts = {"2026-10": {"acct1": {"cpu": "6.60"}}, "2026-11": {"acct1": {"cpu": "0.00"}}}
    assert rows(draw(await show_resources(SavedContext({"refused": refused, "amounts": amounts})))) == [
        ["2026-11", "acct1", "cpu", "0"],
        ["2026-10", "acct1", "cpu", "6.6"],
        ["2026-10-01", "ab12", SHOWN],
        RUNS,
    ]
    reported: Mapping[str, Any] = {
        "reports": {"reported_until": "2026-11-22T12:00:00Z", "open": {"2026-10": {}}},
        "users": {},
    }  # Any: JSON
    assert [part.note for part in draw(await show_reports(SavedContext()))] == ["No report has been made yet."]
    assert rows(draw(await show_reports(SavedContext(reported)))) == [
        ["reports", SHOWN, "1"],
        ["users", "\N{EN DASH}", "0"],
    ]
