"""Runs of the plugin: degenerate cases, commands that fail, dry runs, smoothing, gauges."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import ValidationError

from auditord.testing import EPOCH, FakePluginContext, make_record
from auditord_builtin import priority
from auditord_builtin.priority.config import PriorityConfig
from auditord_builtin.priority.running import (
    PrioritiesNotSet,
    StaleRecords,
    all_commands,
    format_usage,
    round_half_up,
    set_priorities,
    smooth,
    targets,
)
from auditord_hookspecs import AggregateQuery, Aggregates, AuditordError, CommandFailed, Component, Record, Score
from tests.builtin.priority.real_commands import RealCommands

pytestmark = pytest.mark.anyio

NOW = EPOCH + timedelta(days=1)
HOUR = timedelta(hours=1)
GROUPS: dict[str, list[str]] = {"a": ["part_a", "qos a"], "b": ["part_b"]}


def config(**options: object) -> PriorityConfig:
    given_groups = {"group_mapping": GROUPS, "components": {"Cores": None}, "max_priority": 100}
    return PriorityConfig.model_validate({**given_groups, "commands": ["set {1} {priority}"], **options})


def used(**cores: int) -> list[Record]:
    return [make_record(f"job-{group}", cores=amount, group_id=group) for group, amount in cores.items()]


def context(*stored: Record, **options: object) -> FakePluginContext:
    made = FakePluginContext(stored=stored, moment=NOW, commands=lambda _: b"")
    for name, value in options.items():
        setattr(made, name, value)
    return made


def metrics() -> str:
    registry = CollectorRegistry()
    for instrument in priority.auditord_metrics():
        registry.register(instrument)
    return generate_latest(registry).decode()


# -- degenerate cases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["FullSpread", "ScaledBySum"])
async def test_without_any_usage_nothing_is_done_and_the_last_priorities_stay(mode: str) -> None:
    for stored in ([], used(others=5), [make_record(runtime=timedelta(0), group_id="a")]):
        quiet = context(*stored, state={"last": {"a": 70.0}})
        await set_priorities(config(computation_mode=mode), quiet)
        assert (quiet.ran, quiet.shown, quiet.state) == ([], [], {"last": {"a": 70.0}})


async def test_equal_groups_all_get_the_highest_in_full_spread() -> None:
    equal = context(*used(a=3, b=3))
    await set_priorities(config(computation_mode="FullSpread"), equal)
    assert equal.ran == [("set", "part_a", "100"), ("set", "part_b", "100")]


@pytest.mark.parametrize("mode", ["FullSpread", "ScaledBySum"])
async def test_one_group_gets_the_highest(mode: str) -> None:
    alone = context(*used(a=3))
    await set_priorities(config(computation_mode=mode, group_mapping={"a": ["part_a"]}), alone)
    assert alone.ran == [("set", "part_a", "100")]


async def test_equal_bounds_give_everybody_the_same() -> None:
    for mode in ("FullSpread", "ScaledBySum"):
        some = context(*used(a=3, b=1))
        await set_priorities(config(computation_mode=mode, min_priority=7, max_priority=7), some)
        assert [argv[2] for argv in some.ran] == ["7", "7"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_priority": 101}, "min_priority is above max_priority"),
        ({"group_mapping": {}}, "at least 1"),
        ({"commands": []}, "at least 1"),
        ({"commands": [""]}, "needs a program"),
        ({"commands": ["set 'x"]}, "No closing quotation"),
        ({"duration": "0s"}, "greater than"),
        ({"smoothing": 1}, "less than 1"),
        ({"command": ["set"]}, "Extra inputs"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**options)


USAGES = st.dictionaries(st.text(max_size=2), st.fractions(0, 10**24), min_size=1, max_size=6)


@given(usage=USAGES, low=st.integers(0, 10**6), room=st.integers(0, 10**6), spread=st.booleans())
def test_priorities_lie_within_their_bounds_in_the_order_of_usage(
    usage: Mapping[str, Fraction], low: int, room: int, *, spread: bool
) -> None:
    found = targets(usage, "FullSpread" if spread else "ScaledBySum", low, low + room)
    assert (found is None) is (not any(usage.values()))
    if found is not None:
        assert all(low <= round_half_up(each) <= low + room for each in found.values())
        in_order = sorted(usage, key=lambda group: usage[group])
        assert [found[group] for group in in_order] == sorted(found.values())


# -- nothing known is not zero ----------------------------------------------------------------------------------------


class UnavailableRecords(FakePluginContext):
    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        raise AuditordError(f"cut in the middle of {query}")


async def test_records_that_cannot_be_had_change_nothing() -> None:
    away = UnavailableRecords(state={"a": 70.0}, commands=lambda _: b"")
    with pytest.raises(AuditordError, match="cut in the middle"):
        await set_priorities(config(), away)
    assert (away.ran, away.state) == ([], {"a": 70.0})


async def test_stale_records_change_nothing() -> None:
    old = context(*used(a=1))
    with pytest.raises(StaleRecords, match="since 2026-01-01T12:00:00"):
        await set_priorities(config(stale_after="12h"), old)
    assert old.ran == []
    await set_priorities(config(stale_after="23h"), old)
    assert len(old.ran) == 2
    ahead = context(make_record("ahead", start=NOW + timedelta(days=99), group_id="a"), moment=NOW)
    with pytest.raises(StaleRecords):
        await set_priorities(config(stale_after="12h"), ahead)


# -- commands ---------------------------------------------------------------------------------------------------------


def test_templates_are_filled_in_once_within_words() -> None:
    groups = {"{1} {priority}; rm -rf /": ["{group}", "a b", "$(id)"], "plain": []}
    chosen = config(
        group_mapping=groups, commands=["set 'x {group} y' {1}{2} {3} {4} {10} {0} {resource}={resources} {PRIORITY}"]
    )
    usage = dict(zip(groups, (Fraction(12, 10), Fraction(10**22)), strict=True))
    (group, first), (_, second) = all_commands(chosen, usage, dict(zip(groups, (5, 6), strict=True)))
    hostile = "{1} {priority}; rm -rf /"
    ends = ("{4}", "{10}", "{0}", "1.2=1.2", "{PRIORITY}")
    assert (group, first) == (hostile, ["set", f"x {hostile} y", "{group}a b", "$(id)", *ends])
    assert second[1:4] == ["x plain y", "{1}{2}", "{3}"]
    assert second[6] == "{0}"
    assert second[7] == "10000000000000000000000=10000000000000000000000"


@pytest.mark.parametrize(
    ("value", "text"),
    [("17280", "17280"), ("1.2", "1.2"), ("0", "0"), ("1/3", "0.3333333333333333"), ("1e-7", "0.0000001")],
)
def test_usage_is_printed_as_auditor_prints_it(value: str, text: str) -> None:
    assert format_usage(Fraction(value)) == text


async def test_commands_run_one_after_the_other_for_each_group() -> None:
    two = context(*used(a=3, b=1))
    await set_priorities(config(commands=["first {group} {priority}", "second {group}"]), two)
    assert two.ran == [("first", "a", "75"), ("first", "b", "25"), ("second", "a"), ("second", "b")]


SET = """\
case "$2" in
    fails) echo no such partition >&2; exit 1 ;;
    hangs) sleep 60 ;;
esac
printf %s "$3" > "$1/$2"
"""


def written(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


async def test_a_failing_hanging_or_missing_command_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["fails", "hangs", "a b {1} {priority}", "x; touch y", "$HOME"]
    program, folder = tmp_path / "set priority.sh", tmp_path / "set"
    program.write_text(SET)
    folder.mkdir()
    commands = ["/no/such/program {group}", f"sh '{program}' {folder} {{group}} {{priority}}"]
    monkeypatch.setattr("auditord_builtin.priority.running.COMMAND_TIMEOUT", timedelta(seconds=3))
    chosen = config(group_mapping={name: ["p"] for name in names}, commands=commands)
    real = RealCommands(stored=used(**dict.fromkeys(names, 1)), moment=NOW)
    with pytest.raises(PrioritiesNotSet, match="failed for 5 of 5 groups, all others ran"):
        await set_priorities(chosen, real)
    assert written(folder) == dict.fromkeys(names[2:], "20")
    assert real.state["last"] == {}
    for text in ("no program '/no/such/program'", "no such partition", "was killed after 3 s"):
        assert text in caplog.text
    assert set(real.timeouts) == {timedelta(seconds=3)}


def failing_for(*groups: str) -> Callable[[Sequence[str]], bytes]:
    def play(argv: Sequence[str]) -> bytes:
        if argv[1] in groups:
            raise CommandFailed("`set` ended with exit code 1")
        return b""

    return play


async def test_the_gauges_show_what_has_taken_effect() -> None:
    some = context(*used(a=3, b=1), instance="gauges", commands=failing_for("part_b"))
    with pytest.raises(PrioritiesNotSet, match="1 of 2 groups"):
        await set_priorities(config(), some)
    shown = metrics()
    for line in (
        'auditord_priority_applied{group="a",task="gauges"} 75.0',
        'priority{group="a",task="gauges"} 75.0',
        'resource_usage{group="b",task="gauges"} 3600.0',
        'auditord_priority_resource_usage{group="b",task="gauges"} 3600.0',
        'auditord_priority_command_failures_total{group="b",task="gauges"} 1.0',
    ):
        assert line in shown.splitlines()
    assert 'priority{group="b",task="gauges"}' not in shown


async def test_gauges_are_chosen() -> None:
    await set_priorities(config(metrics=["Priority"]), context(*used(a=1), instance="chosen"))
    assert 'priority{group="a",task="chosen"}' in metrics()
    assert 'resource_usage{group="a",task="chosen"}' not in metrics()


async def test_auditors_gauge_is_a_whole_number() -> None:
    record = make_record(runtime=timedelta(seconds=1), components={"X": 1}, group_id="a")
    fraction = Record(
        record.record_id, record.start_time, (), record.start_time + 1.5 * timedelta(seconds=1), record.meta
    )
    await set_priorities(
        config(components={}, window="overlap", duration="2d", group_mapping={"a": ["p"]}),
        context(fraction, instance="whole"),
    )
    assert 'resource_usage{group="a",task="whole"} 1.0' in metrics()
    assert 'auditord_priority_resource_usage{group="a",task="whole"} 1.5' in metrics()


async def test_an_absurd_score_keeps_no_priority_from_being_set() -> None:
    scores = {"a": 1.7976931348623157e308, "b": 1e308}
    jobs = [
        Record(group, NOW - HOUR, (Component("C", 8, (Score("s", score),)),), NOW, {"group_id": (group,)})
        for group, score in scores.items()
    ]
    chosen = config(components={"C": "s"}, commands=["set {group} {priority} {resource}"], duration=None)
    absurd = context(*jobs)
    await set_priorities(chosen, absurd)
    assert [words[:3] for words in absurd.ran] == [("set", "a", "64"), ("set", "b", "36")]


async def test_a_dry_run_shows_exactly_the_commands_and_does_nothing() -> None:
    dry = context(*used(a=3, b=1), dry_run=True, instance="dry", state={"last": {"a": 1.0}})
    await set_priorities(config(commands=["set '{group} x' {priority}"]), dry)
    assert dry.shown == ["set 'a x' 75", "set 'b x' 25"]
    assert (dry.ran, dry.state) == ([], {"last": {"a": 1.0}})
    assert 'task="dry"' not in metrics()


# -- smoothing --------------------------------------------------------------------------------------------------------


async def test_smoothing_goes_part_of_the_way_and_arrives() -> None:
    steady = context(*used(a=1, b=0))
    await set_priorities(config(smoothing=0.9), steady)
    assert steady.state["last"] == {"a": 100.0, "b": 0.0}
    steady.stored = used(a=0, b=1)
    heights: list[int] = []
    for _ in range(80):
        steady.ran.clear()
        await set_priorities(config(smoothing=0.9), steady)
        heights.append(int(steady.ran[1][2]))
    assert heights[:3] == [10, 19, 27]
    assert heights == sorted(heights)
    assert heights[-1] == 100


async def test_a_group_whose_command_failed_is_smoothed_from_where_it_is() -> None:
    failing = context(*used(a=1, b=1), state={"last": {"a": 0.0, "b": 0.0}}, commands=failing_for("part_b"))
    with pytest.raises(PrioritiesNotSet):
        await set_priorities(config(smoothing=0.5), failing)
    assert failing.state["last"] == {"a": 25.0, "b": 0.0}


async def test_bounds_that_were_narrowed_hold_at_once() -> None:
    narrowed = context(*used(a=1, b=1), state={"last": {"a": 9_000.0, "b": 0.0, "gone": 5.0}})
    await set_priorities(config(smoothing=0.9), narrowed)
    assert narrowed.ran[0] == ("set", "part_a", "95")
    assert set(narrowed.state["last"]) == {"a", "b"}


def test_a_group_that_is_new_gets_its_own_at_once() -> None:
    assert smooth({"new": Fraction(8), "old": Fraction(8)}, {"old": Fraction(0)}, 0.25) == {"new": 8, "old": 6}
