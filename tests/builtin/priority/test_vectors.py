"""AUDITOR's own figures, on both stores and on the stand-in; and what its plugin gets wrong."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.store.reading import StoredRecords
from auditord.testing import EPOCH, FakePluginContext
from auditord_builtin.priority.config import PriorityConfig
from auditord_builtin.priority.running import look_up_usage, set_priorities
from auditord_hookspecs import AggregateQuery, Aggregates, Component, Record, Records, Score

pytestmark = pytest.mark.anyio

NOW = EPOCH + timedelta(days=30)
SECOND = timedelta(seconds=1)
Jobs = Sequence[tuple[str, Mapping[str, tuple[int, Mapping[str, float]]], int]]
"""Group, components with amount and scores, seconds."""

CPUS, SCORE = "NumCPUs", "HEPSPEC"


def job(group: str, cores: int, score: float, seconds: int) -> tuple[str, dict[str, tuple[int, dict[str, float]]], int]:
    return group, {CPUS: (cores, {SCORE: score})}, seconds


AUDITORS_OWN: Jobs = [
    job("group1", 40, 1.2, 60),
    job("group1", 40, 1.5, 240),
    job("group2", 20, 1.8, 480),
    job("group2", 10, 0.8, 60),
    job("group3", 80, 1.0, 300),
    job("group4", 10, 1.0, 60),
    job("group5", 999, 9.0, 9_999),
]
GROUPS = ["group1", "group2", "group3", "group4", "group6"]
DAYS = 172_800
EXPORTED: Jobs = [
    job("a", 8, 10, DAYS),
    job("a", 8, 10, DAYS),
    job("b", 15, 10, DAYS),
    job("b", 15, 10, DAYS),
    *[("c", {CPUS: (cores, {"other": 7.0})}, DAYS) for cores in (8, 11)],
    *[("d", {CPUS: (cores, {"other": 7.0})}, DAYS) for cores in (8, 14)],
]
PLAIN: Jobs = [(name, {"C": (1, {})}, seconds) for name, seconds in (("x", 2), ("y", 3), ("z", 4))]
TWO_KINDS: Jobs = [("g", {"Cores": (8, {"s": 10.0}), "GPU": (2, {"s": 5.0})}, 60)]
"""8 cores at 10 and 2 GPUs at 5, for a minute."""


def records(jobs: Jobs) -> list[Record]:
    return [
        Record(
            f"job-{number}",
            NOW - timedelta(days=5),
            tuple(
                [
                    Component(name, amount, tuple([Score(*each) for each in scores.items()]))
                    for name, (amount, scores) in components.items()
                ]
            ),
            NOW - timedelta(days=5) + seconds * SECOND,
            {"group_id": (group,)},
        )
        for number, (group, components, seconds) in enumerate(jobs)
    ]


class OnStore(FakePluginContext):
    """The stand-in over the records of a real store."""

    kept: Records

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        return await self.kept.aggregate(query)


@pytest.fixture(params=["stand-in", "sqlite", "postgresql"])
def open_context(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None

    @asynccontextmanager
    async def opened(stored: Sequence[Record]) -> AsyncGenerator[FakePluginContext, None]:
        if request.param == "stand-in":
            yield FakePluginContext(stored=stored, moment=NOW, commands=lambda _: b"")
            return
        async with open_store(made or f"sqlite://{tmp_path / 'records.db'}", counted_keys=()) as store:
            await store.add_all(stored, Provenance(NOW), Duplicates.SAME_RUN, atomic=True)
            context = OnStore(moment=NOW, commands=lambda _: b"")
            context.kept = StoredRecords(store)
            yield context

    return opened


def config(groups: Sequence[str], **options: object) -> PriorityConfig:
    return PriorityConfig.model_validate(
        {"group_mapping": {group: [] for group in groups}, "commands": ["set {group} {priority} {resource}"], **options}
    )


async def outcome(chosen: PriorityConfig, context: FakePluginContext) -> list[tuple[str, ...]]:
    await set_priorities(chosen, context)
    return [tuple(argv[1:]) for argv in context.ran]


@pytest.mark.parametrize(
    ("mode", "priorities"),
    [("FullSpread", (47041, 48348, 65335, 1634, 1)), ("ScaledBySum", (18931, 19457, 26292, 658, 1))],
)
async def test_the_figures_of_auditors_first_test(open_context: Any, mode: str, priorities: Sequence[int]) -> None:
    chosen = config(
        GROUPS, components={CPUS: SCORE}, min_priority=1, max_priority=65335, computation_mode=mode, duration="30d"
    )
    used = ("17280", "17760", "24000", "600", "0")
    async with open_context(records(AUDITORS_OWN)) as context:
        assert await outcome(chosen, context) == list(zip(GROUPS, map(str, priorities), used, strict=True))


async def test_the_figures_of_auditors_exporter(open_context: Any) -> None:
    chosen = config("abcd", components={CPUS: SCORE}, min_priority=1, max_priority=65335)
    async with open_context(records(EXPORTED)) as context:
        assert await outcome(chosen, context) == [
            ("a", "20866", "27648000"),
            ("b", "39123", "51840000"),
            ("c", "2479", "3283200"),
            ("d", "2870", "3801600"),
        ]


@pytest.mark.parametrize(("mode", "expected"), [("FullSpread", "1 6 10"), ("ScaledBySum", "3 4 5")])
async def test_halves_are_rounded_up(open_context: Any, mode: str, expected: str) -> None:
    chosen = config("xyz", components={"C": None}, min_priority=1, max_priority=10, computation_mode=mode)
    async with open_context(records(PLAIN)) as context:
        assert [priority for _, priority, _ in await outcome(chosen, context)] == expected.split()
        even = chosen.model_copy(update={"min_priority": 0, "max_priority": 9, "computation_mode": "FullSpread"})
        context.ran.clear()
        context.state = None
        assert [priority for _, priority, _ in await outcome(even, context)] == ["0", "5", "9"]  # 4.5, and not to 4


@pytest.mark.parametrize(("combination", "expected"), [("sum", 5_400), ("product", 48_000)])
async def test_components_are_added_or_multiplied(open_context: Any, combination: str, expected: int) -> None:
    chosen = config("g", components={"Cores": "s", "GPU": "s", "Disk": "s"}, component_combination=combination)
    async with open_context(records(TWO_KINDS)) as context:
        assert await look_up_usage(chosen, context) == {"g": expected}


async def test_a_product_counts_components_without_score_with_one_and_no_others(open_context: Any) -> None:
    jobs: Jobs = [
        ("g", {"Cores": (8, {}), "GPU": (2, {"s": 5.0})}, 60),
        ("g", {"Disk": (8, {"s": 3.0})}, 60),
        ("g", {"Cores": (3, {"s": 0.1})}, 10),
    ]
    chosen = config("g", components={"Cores": "s", "GPU": "s"}, component_combination="product")
    async with open_context(records(jobs)) as context:
        assert await look_up_usage(chosen, context) == {"g": 8 * 2 * 5 * 60 + 3}


@pytest.mark.parametrize("combination", ["sum", "product"])
async def test_usage_that_is_unknown_is_said_to_be(
    open_context: Any, combination: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs: Jobs = [("g", {"Disk": (8, {})}, 60), ("h", {"Cores": (2, {})}, 60)]
    chosen = config("gh", components={"Cores": None, "GPU": None}, component_combination=combination)
    async with open_context(records(jobs)) as context:
        assert await look_up_usage(chosen, context) == {"g": 0, "h": 120}
    [said] = [line for line in caplog.messages if "unknown" in line]
    assert said == "group g: records without Cores or GPU have an unknown usage, which counts as 0"


async def test_time_alone_counts_without_components(open_context: Any) -> None:
    async with open_context(records(AUDITORS_OWN)) as context:
        assert (await look_up_usage(config(GROUPS), context))["group1"] == 300


EARLY, LATE = NOW - timedelta(days=2), NOW - timedelta(days=1)
CROSSING = [
    Record("over", EARLY - SECOND, (Component("C", 2, ()),), EARLY + 10 * SECOND, {"group": ("g",)}),
    Record("within", LATE, (Component("C", 1, ()),), LATE + 100 * SECOND, {"group_id": ("g",)}),
    Record("before", EARLY - 9 * SECOND, (Component("C", 64, ()),), EARLY - SECOND, {"group_id": ("g",)}),
    Record("running", NOW - 7 * SECOND, (Component("C", 10, ()),), None, {"group_id": ("g",)}),
    Record("nobody's", LATE, (Component("C", 64, ()),), LATE + SECOND, None),
]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"window": "stop", "duration": "2d"}, 2 * 11 + 100),
        ({"window": "start", "duration": "2d"}, 100),
        ({"window": "overlap", "duration": "2d"}, 2 * 10 + 100 + 70),
        ({}, 2 * 11 + 100 + 64 * 8),
        ({"window": "overlap"}, 2 * 11 + 100 + 64 * 8 + 70),
        ({"group_keys": ["group_id"], "duration": "2d"}, 100),
    ],
)
async def test_what_counts_within_a_window(open_context: Any, options: dict[str, object], expected: int) -> None:
    chosen = config("g", components={"C": None}, **options)
    async with open_context(CROSSING) as context:
        assert await look_up_usage(chosen, context) == {"g": Fraction(expected)}


async def test_a_record_from_a_clock_gone_wrong_does_not_count_until_then(open_context: Any) -> None:
    ahead = Record("ahead", LATE, (Component("C", 64, ()),), NOW + 9_999 * SECOND, {"group_id": ("g",)})
    async with open_context([*CROSSING, ahead]) as context:
        usage = await look_up_usage(config("g", components={"C": None}, duration="2d"), context)
    assert usage == {"g": 2 * 11 + 100}


async def test_a_score_that_no_float_has_is_counted_exactly(open_context: Any) -> None:
    jobs: Jobs = [("g", {"C": (1, {"s": 0.1})}, 1)] * 10
    async with open_context(records(jobs)) as context:
        assert await look_up_usage(config("g", components={"C": "s"}), context) == {"g": 1}
