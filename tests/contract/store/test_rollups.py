"""Roll-ups give the sums of the records, whatever has happened to these, on both stores."""

# pyright: reportPrivateUsage=false

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol, TypeVar, cast

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auditord.store import Action, Amendment, Duplicates, Provenance, RecordStore
from auditord.store.aggregates import NotRolledUp
from auditord.store.rollups import upkeep
from auditord.store.rollups.cells import END, FIRST_DAY, label_row
from auditord.store.rollups.changes import RollupChanges, label_text, note
from auditord.store.rollups.folding import FoldingLimits, drop_unused_labels, waiting_changes
from auditord.store.rollups.scope import MOST_SPLIT_DAYS, scope_of
from auditord.store.rows import make_row
from auditord.store.store import SqlRecordStore
from auditord.store.work import Work, as_json, ask
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    CalendarPeriod,
    CalendarUnit,
    Component,
    ComponentAmount,
    ComponentPresent,
    ComponentUsage,
    MetaValue,
    Record,
    RecordQuery,
    RecordUpdate,
    Score,
    ScoreValue,
)
from auditord_hookspecs.query import (
    AllOf,
    AnyOf,
    Comparison,
    IsOpen,
    MetaAbsent,
    MetaContains,
    MetaContainsAny,
    MetaLacks,
    TimeCompares,
    TimeField,
)
from auditord_hookspecs.records import MAX_AMOUNT
from auditord_hookspecs.wire import decode_record
from tests.summed_records import aggregate_records

T = TypeVar("T")

pytestmark = pytest.mark.anyio

BEGIN: Final = datetime(2024, 1, 29, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
DAY: Final = 24 * HOUR
BY_COLLECTOR: Final = Provenance(BEGIN, "task:slurm")
SITE, GROUP, USER = MetaValue("site_id", "site"), MetaValue("group_id", "group"), MetaValue("user_id", "user")
USAGE: Final = (ComponentUsage("Cores", ("HS23", "none")), ComponentUsage("Memory"), ComponentUsage("Other", ("HS23",)))
CPU_USAGE: Final = (ComponentUsage("TotalCPU"), ComponentUsage("Cores"))


class StoreFactory(Protocol):
    def __call__(self, *, outbox: bool = False) -> AbstractAsyncContextManager[RecordStore]: ...


def stopped(begin: datetime | None, end: datetime | None) -> tuple[TimeCompares, ...]:
    after = () if begin is None else (TimeCompares(TimeField.STOP, Comparison.GTE, begin),)
    return after if end is None else (*after, TimeCompares(TimeField.STOP, Comparison.LT, end))


def day(number: int) -> datetime:
    return BEGIN + timedelta(days=number)


MONTH_HERE: Final = CalendarPeriod(CalendarUnit.MONTH, zone="Europe/Berlin")
MONTH_THERE: Final = CalendarPeriod(CalendarUnit.MONTH, zone="Pacific/Kiritimati")
WEEK_ELSEWHERE: Final = CalendarPeriod(CalendarUnit.WEEK, zone="America/St_Johns")
QUERIES: Final = (
    AggregateQuery(usage=USAGE),
    AggregateQuery(by=(SITE, GROUP, CalendarPeriod(CalendarUnit.MONTH)), usage=USAGE),
    AggregateQuery(by=(USER, CalendarPeriod(CalendarUnit.YEAR)), usage=USAGE),
    AggregateQuery(by=(CalendarPeriod(CalendarUnit.DAY),), usage=USAGE[:1]),
    AggregateQuery(by=(CalendarPeriod(CalendarUnit.WEEK), ScoreValue("Cores", "HS23"))),
    AggregateQuery(AllOf(stopped(day(1), day(4))), (GROUP,), USAGE),
    AggregateQuery(AllOf(stopped(day(1) + HOUR, day(4) - HOUR)), (CalendarPeriod(CalendarUnit.QUARTER),), USAGE),
    AggregateQuery(AllOf((MetaContains("user_id", "u"), *stopped(day(2), None))), (SITE,), USAGE),
    AggregateQuery(AnyOf((MetaLacks("group_id", "g"), MetaAbsent("site_id"))), (CalendarPeriod(CalendarUnit.MONTH),)),
    AggregateQuery(AnyOf((MetaContains("site_id", "a"), IsOpen())), (USER,), USAGE[1:], None, day(3) + HOUR),
    AggregateQuery(AllOf((MetaContains("group", "g"),)), (MetaValue("group_id"), MetaValue("site"))),
    AggregateQuery(by=(USER, CalendarPeriod(CalendarUnit.MONTH), ComponentPresent("TotalCPU")), usage=CPU_USAGE),
    AggregateQuery(by=(GROUP, CalendarPeriod(CalendarUnit.YEAR, zone="Europe/Berlin")), usage=USAGE),
    AggregateQuery(AllOf(stopped(day(-90), None)[:1] + stopped(None, day(90))), (GROUP, MONTH_HERE), USAGE),
    AggregateQuery(AllOf(stopped(day(0) - HOUR, day(4) - HOUR)), (USER, MONTH_THERE, WEEK_ELSEWHERE), USAGE[:1]),
    AggregateQuery(by=(WEEK_ELSEWHERE,), usage=USAGE),
    AggregateQuery(AllOf(stopped(day(1) + HOUR, None)), (ComponentPresent("TotalCPU"),), CPU_USAGE, None, day(3)),
)

VO: Final = MetaValue("VO")
CORES: Final = ComponentAmount("Cores")
OF_KEYS: Final = (
    AggregateQuery(by=(VO,), usage=USAGE),
    AggregateQuery(by=(VO, CalendarPeriod(CalendarUnit.MONTH), ComponentPresent("TotalCPU")), usage=CPU_USAGE),
    AggregateQuery(AllOf(stopped(day(1) + HOUR, day(4) - HOUR)), (MetaValue("VO", "site_id"),), USAGE),
    AggregateQuery(AllOf((MetaContains("VO", "x"), *stopped(day(1), None))), (SITE,), USAGE[:1]),
    AggregateQuery(AnyOf((MetaLacks("VO", "y"), MetaAbsent("VO"))), (CalendarPeriod(CalendarUnit.YEAR),), USAGE[1:]),
    AggregateQuery(by=(CORES,), usage=USAGE),
    AggregateQuery(MetaContains("site_id", "a"), (CalendarPeriod(CalendarUnit.DAY), CORES), USAGE, None, day(3)),
    AggregateQuery(by=(CORES, MONTH_HERE)),
)
"""Questions that cells of a key answer."""
OF_ZONE: Final = (
    AggregateQuery(by=(CalendarPeriod(CalendarUnit.DAY, zone="Europe/Berlin"), SITE), usage=USAGE),
    AggregateQuery(by=(MONTH_HERE, CalendarPeriod(CalendarUnit.WEEK), ComponentPresent("TotalCPU")), usage=CPU_USAGE),
    AggregateQuery(
        AllOf((MetaLacks("group_id", "h"), *stopped(day(0) - HOUR, day(4) - HOUR))),
        (GROUP, CalendarPeriod(CalendarUnit.DAY, zone="Europe/Berlin"), CalendarPeriod(CalendarUnit.DAY)),
        USAGE,
        None,
        day(3) - HOUR,
    ),
    AggregateQuery(by=(CalendarPeriod(CalendarUnit.WEEK, zone="Europe/Berlin"), WEEK_ELSEWHERE), usage=USAGE[:1]),
)
"""Questions that cells by days of Europe/Berlin answer."""
DAY_HERE: Final = CalendarPeriod(CalendarUnit.DAY, zone="Europe/Berlin")
WEEK_HERE: Final = CalendarPeriod(CalendarUnit.WEEK, zone="Europe/Berlin")
OF_ZONE_AND_KEY: Final = (
    AggregateQuery(MetaContains("user_id", "u"), (WEEK_HERE, SITE, ComponentPresent("TotalCPU")), CPU_USAGE),
    AggregateQuery(MetaContainsAny("user_id", ("u", "user1")), (MONTH_HERE, USER), USAGE, None, day(3)),
    AggregateQuery(
        AllOf((MetaContainsAny("user_id", ("u", "user1", "\0")), *stopped(day(-90), day(90)))), (USER, WEEK_HERE), USAGE
    ),
    AggregateQuery(AllOf(stopped(day(-90) - HOUR, day(90) + HOUR)), (MONTH_HERE, VO), USAGE),
    AggregateQuery(AllOf(stopped(day(-800), day(800))), (VO, CalendarPeriod(CalendarUnit.YEAR, zone="Europe/Berlin"))),
    AggregateQuery(by=(MONTH_HERE, CalendarPeriod(CalendarUnit.MONTH), VO), usage=USAGE),
    AggregateQuery(by=(DAY_HERE, CORES), usage=USAGE),
    AggregateQuery(by=(WEEK_HERE, VO, GROUP), usage=USAGE),
    AggregateQuery(MetaContains("VO", "x"), (DAY_HERE,), USAGE[1:]),
    AggregateQuery(by=(VO, CalendarPeriod(CalendarUnit.MONTH)), usage=USAGE),
    AggregateQuery(AllOf(stopped(day(-90) + HOUR, day(90) - HOUR)), (VO,), USAGE),
)
"""Questions that cells of a key by these days answer."""
MONTH_ELSEWHERE: Final = CalendarPeriod(CalendarUnit.MONTH, zone="America/St_Johns")
OF_EARLIER_ZONE: Final = (
    AggregateQuery(by=(MONTH_ELSEWHERE, SITE), usage=USAGE),
    AggregateQuery(AllOf(stopped(day(-90), day(90) + HOUR)), (VO, MONTH_ELSEWHERE), USAGE),
    AggregateQuery(AllOf(stopped(day(-90) - HOUR, None)), (CORES, MONTH_ELSEWHERE, WEEK_ELSEWHERE), USAGE),
    AggregateQuery(by=(CalendarPeriod(CalendarUnit.YEAR, zone="America/St_Johns"), VO), usage=USAGE[:1]),
)
"""The same of a zone whose dates are behind UTC."""
OTHERS: Final = (
    AggregateQuery(by=(USER, DAY_HERE), usage=USAGE[:1]),
    AggregateQuery(AllOf((MetaLacks("user_id", "u"), *stopped(day(0) - HOUR, day(4) - HOUR))), (DAY_HERE,), USAGE[:1]),
    AggregateQuery(by=(USER, VO), usage=USAGE[:1]),
    AggregateQuery(by=(VO, CORES), usage=USAGE[:1]),
    AggregateQuery(MetaContains("user_id", "u"), (CORES,)),
)
"""Questions that none answers."""

# Few values, so that records share cells, leave and come back to them; hours around the ends of days and of a month.
META: Final = st.fixed_dictionaries(
    {},
    optional={
        "site_id": st.sampled_from([("a",), ("b",), ("a", "b")]),
        "group_id": st.sampled_from([("g",), ("h",)]),
        "user_id": st.sampled_from([("u",), ("v",), ()]),
        "group": st.just(("g",)),
        "VO": st.sampled_from([("x",), ("x",), ("y",), ("y", "x"), ()]),
    },
)
AMOUNTS: Final = st.sampled_from([0, 1, 8, 8, 10**12, 2**53 - 1])
SCORES: Final = st.sampled_from([(), (Score("HS23", 9.2),), (Score("HS23", 18.5), Score("HS06", 1 / 3))])
COMPONENTS: Final = st.lists(
    st.builds(Component, st.sampled_from(["Cores", "TotalCPU", "Memory", "Other"]), AMOUNTS, SCORES), max_size=3
).map(tuple)
HUGE: Final = st.just((Component("Memory", MAX_AMOUNT, ()), Component("Memory", MAX_AMOUNT, ())))
SOME_COMPONENTS: Final = st.one_of(COMPONENTS, COMPONENTS, COMPONENTS, HUGE, HUGE.map(lambda pair: pair[:1]))
ZONES: Final = st.sampled_from(["UTC", "Europe/Berlin", "Europe/Berlin", "America/St_Johns"])
HOURS: Final = st.integers(0, 30).map(lambda number: BEGIN + number * 4 * HOUR)
IDS: Final = st.sampled_from(["r0", "r1", "r2", "r3", "r4"])


@st.composite
def records(draw: st.DrawFn) -> Record:
    start = draw(HOURS)
    stop = draw(st.one_of(st.none(), HOURS, HOURS.map(lambda moment: moment + timedelta(microseconds=1))))
    return Record(draw(IDS), start, draw(SOME_COMPONENTS), stop, draw(META) or None)


@dataclass(frozen=True)
class Add:
    record: Record


@dataclass(frozen=True)
class AddAll:
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Stop:
    record_id: str
    at: datetime


@dataclass(frozen=True)
class Replace:
    record: Record


@dataclass(frozen=True)
class Correct:
    record_id: str
    record: Record | None


@dataclass(frozen=True)
class Redact:
    record_id: str
    key: str


@dataclass(frozen=True)
class Fold:
    """Changes are folded, as the daemon does now and then."""


@dataclass(frozen=True)
class Keep:
    """Another configuration: other keys get cells, which are filled before anything else happens, or meanwhile."""

    keys: tuple[str, ...]
    waits: bool
    zone: str


@dataclass(frozen=True)
class Unlearn:
    """As a process that does not know yet which keys have cells."""


Change = Add | AddAll | Stop | Replace | Correct | Redact
Event = Change | Fold | Keep | Unlearn

EVENTS: Final = st.one_of(
    st.builds(Add, records()),
    st.builds(AddAll, st.lists(records(), max_size=4, unique_by=lambda each: each.record_id).map(tuple)),
    st.builds(Stop, IDS, HOURS),
    st.builds(Replace, records()),
    st.builds(Correct, IDS, records() | st.none()),
    st.builds(Redact, IDS, st.sampled_from(["user_id", "VO"])),
    st.builds(Fold),
    st.builds(Keep, st.sampled_from([(), ("VO",), ("other", "VO", "site_id")]), st.booleans(), ZONES),
    st.builds(Unlearn),
)


async def stored(store: RecordStore) -> list[Record]:
    async with store.stream(RecordQuery()) as pages:
        return [decode_record(document) async for page in pages for document in page]


async def happen(store: SqlRecordStore, event: Event) -> None:
    match event:
        case Keep(keys, waits, zone):
            store.rollups.keep_by(keys, zone)
            if waits:
                await filled(store)
        case Unlearn():
            store.rollups.keys = ()
        case Fold():
            await store.rollups.fold()
        case _:
            await change(store, event)


async def change(store: SqlRecordStore, event: Change) -> None:
    match event:
        case Add(record):
            await store.add(record, BY_COLLECTOR, Duplicates.IGNORE)
        case AddAll(several):
            await store.add_all(several, BY_COLLECTOR, Duplicates.IGNORE, atomic=False)
        case Stop(record_id, at):
            await store.stop(RecordUpdate(record_id, (), at), BY_COLLECTOR)
        case Replace(record):
            await store.replace(record, BY_COLLECTOR)
        case Correct(record_id, record):
            await correct(store, record_id, record)
        case Redact(record_id, key):
            await store.redact([record_id], [key])


async def correct(store: SqlRecordStore, record_id: str, wanted: Record | None) -> None:
    if (document := await store.get(record_id)) is not None:
        after = None
        if wanted is not None:
            after = Record(record_id, wanted.start_time, wanted.components, wanted.stop_time, wanted.meta)
        action = Action.DELETE if after is None else Action.CORRECT
        await store.amend([Amendment(action, document, after, "a test")], BY_COLLECTOR)


async def from_rollups(store: SqlRecordStore, query: AggregateQuery) -> Aggregates | None:
    """The answer of the roll-ups; None if they do not know all of it."""
    scope = await store._scope(query)
    if scope is None:
        return None
    try:
        return (await store.sums(query, scope))[0]
    except NotRolledUp:
        return None


async def check(store: SqlRecordStore) -> int:
    """That all sums are those of the records; returns how many of them the roll-ups knew."""
    now, known = await stored(cast("RecordStore", store)), 0
    for query in QUERIES:
        expected = aggregate_records(now, query)
        found = await from_rollups(store, query)
        assert found is None or found == expected
        assert await store.aggregate(query) == expected
        known += found is not None
    for query in (*OF_KEYS, *OF_ZONE, *OF_ZONE_AND_KEY, *OF_EARLIER_ZONE, *OTHERS):
        expected = aggregate_records(now, query)
        assert (await from_rollups(store, query) or expected) == expected
        assert await store.aggregate(query) == expected
    return known


async def known_of_keys(store: SqlRecordStore) -> int:
    """The number of questions about keys that the roll-ups answer."""
    return len([query for query in OF_KEYS if await from_rollups(store, query) is not None])


async def filled(store: SqlRecordStore) -> None:
    """Wait until the cells of all keys are complete."""
    while store.rollups._wanted is not None or any(
        each.filled_from > FIRST_DAY for each in await store.rollups.rolled_keys()
    ):
        store.rollups.wake()
        await asyncio.sleep(0.01)


async def settled(store: SqlRecordStore) -> None:
    """Wait until the cells are complete and nothing is left to be folded."""
    while await store.rollups.ready() < END:
        store.rollups.wake()
        await asyncio.sleep(0.01)
    await store.rollups.fold()
    if (task := store.rollups._work_task) is not None:
        await asyncio.wait({task})  # nothing is done beside what the test does next


def job(number: int, **meta: str) -> Record:
    start, cores = BEGIN + number * HOUR, Component("Cores", number % 7, (Score("HS23", 9.2 + number % 3),))
    labels = {"site_id": f"site{number % 2}", "group_id": f"group{number % 3}", "user_id": f"user{number % 5}", **meta}
    components = (cores, Component("Memory", 10**10 + number, ()), Component(f"Other{number % 2}", 1, ()))
    cpu_time = (Component("TotalCPU", number, ()),) if number % 3 else ()
    return Record(
        f"job-{number}", start, (*components, *cpu_time), start + HOUR, {key: (text,) for key, text in labels.items()}
    )


async def test_roll_ups_know_the_answers(stores: StoreFactory) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        await store.add_all(list(map(job, range(300))), BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        assert await check(store) == len(QUERIES)  # from what has not been folded
        await settled(store)
        assert await check(store) == len(QUERIES)
        await store.add(job(300), BY_COLLECTOR, Duplicates.SAME_RUN)
        await correct(store, "job-150", None)
        assert await check(store) == len(QUERIES)  # from both


async def test_a_sum_does_not_wait_until_very_many_changes_are_folded(
    stores: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, fold_some = asyncio.Event(), asyncio.Event(), upkeep.Upkeep._fold_some

    async def fold_later(rollups: upkeep.Upkeep) -> bool:
        begun.set()
        await may_end.wait()
        return await fold_some(rollups)

    monkeypatch.setattr(upkeep.Upkeep, "_fold_some", fold_later)  # before anything can be folded in the background
    records = list(map(job, range(600)))  # more than are rather read as they are
    query = AggregateQuery(by=(SITE, USER), usage=USAGE)
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        store.rollups.limits = FoldingLimits(patience=0.001)
        await store.add_all(records, BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        assert await store.aggregate(query) == aggregate_records(records, query)
        await begun.wait()
        assert await store.rollups._read(waiting_changes()) > 0
        may_end.set()
        await settled(store)
        assert await store.rollups._read(waiting_changes()) == 0
        assert await store.aggregate(query) == aggregate_records(records, query)


async def test_weeks_of_a_zone_over_centuries_have_a_bounded_statement(stores: StoreFactory) -> None:
    """Records long before the days that cells answer, and behind them, are read one by one."""
    query = AggregateQuery(by=(WEEK_ELSEWHERE,), usage=USAGE)
    scope = scope_of(query)
    assert scope is not None
    narrow = scope.within(-10_000, 50_000)
    assert narrow is not None
    assert len(narrow.split_days()) == MOST_SPLIT_DAYS < len(scope.split_days())
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        moved = [
            msgspec.structs.replace(job(at), start_time=moment, stop_time=moment + HOUR)
            for at, moment in enumerate(datetime(year, 3, 4, 3, tzinfo=UTC) for year in (1955, 1999, 2020, 2024, 2055))
        ]
        await store.add_all([*moved, job(9)], BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        assert await check(store) == len(QUERIES)
        await settled(store)
        assert await check(store) == len(QUERIES)


async def test_the_first_record_of_a_cell_is_deleted(stores: StoreFactory) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        await store.add_all(list(map(job, range(20))), BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        await correct(store, "job-0", None)
        assert await check(store) < len(QUERIES)
        await settled(store)
        assert await check(store) < len(QUERIES)


async def test_a_correction_that_takes_the_cpu_time_away_leaves_the_others_ends(stores: StoreFactory) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        parts = (Component("Cores", 2, ()), Component("TotalCPU", 60, ()))
        meta: dict[str, tuple[str, ...]] = {"user_id": ("u",)}
        every = [Record(f"r{at}", BEGIN, parts, BEGIN + (at + 1) * HOUR, meta) for at in range(3)]
        await store.add_all(every, BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        await settled(store)
        without = Record("r0", BEGIN, parts[:1], BEGIN + HOUR, meta)
        await correct(store, "r0", without)
        await check(store)
        await settled(store)
        assert 0 < await check(store) < len(QUERIES)  # the first stop with a CPU time is only known from the records


async def test_no_label_keeps_a_name_that_is_in_no_record(stores: StoreFactory) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        meta: dict[str, tuple[str, ...]] = {"site_id": ("a",), "user_id": ("alice",)}
        both = [Record(each, BEGIN, (), BEGIN + HOUR, meta) for each in ("one", "two")]
        await store.add_all(both, BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        await settled(store)
        assert len(await labels(store)) == 2  # with the name, and of all users together
        await store.redact(["one"], ["user_id"])
        await store.rollups.fold()
        assert len(await labels(store)) == 2
        await store.redact(["two"], ["user_id"])
        await store.rollups.fold()
        assert await labels(store) == [label_row(label_text("a", None, None)).digest]
        assert await check(store) > 0


async def test_a_redaction_while_changes_are_folded_leaves_no_label(
    stores: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        meta: dict[str, tuple[str, ...]] = {"site_id": ("a",), "user_id": ("alice",)}
        both = [Record(each, BEGIN, (), BEGIN + HOUR, meta) for each in ("one", "two")]
        await store.add_all(both, BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        await settled(store)
        read, others = store.rollups._read, ["two"]

        async def redact_meanwhile(work: Work[T]) -> T:
            if others and getattr(work, "__name__", "") == "has_unused_labels":  # changes have been folded
                await store.redact([others.pop()], ["user_id"])
            return await read(work)

        monkeypatch.setattr(store.rollups, "_read", redact_meanwhile)
        await store.redact(["one"], ["user_id"])
        while others:
            await store.rollups.fold()
        await store.rollups.fold()
        assert await labels(store) == [label_row(label_text("a", None, None)).digest]


async def test_no_sum_waits_until_unused_labels_are_looked_for(
    stores: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        await settled(store)
        monkeypatch.setattr(store.rollups, "wake", lambda: None)
        await store.add_all(list(map(job, range(600))), BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        await store.redact(["job-1"], ["user_id"])
        dropped: list[bool] = []

        def dropping() -> Work[None]:
            dropped.append(True)
            return drop_unused_labels()

        monkeypatch.setattr(upkeep, "drop_unused_labels", dropping)
        assert await check(store) > 0
        assert not dropped
        await store.rollups.fold()
        assert not dropped  # none is unused
        await store.redact([f"job-{number}" for number in range(600)], ["user_id"])
        await store.rollups.fold()
        assert dropped


async def labels(store: SqlRecordStore) -> list[str]:
    """The labels of the records of that test, as far as there are any."""
    digests = [label_row(label_text("a", None, user)).digest for user in ("alice", None)]
    rows = await store._read(ask("find_rollup_labels", digests=as_json(digests)))
    return [digest for digest, _ in rows]


async def test_the_last_record_of_a_cell_is_deleted_and_another_comes(stores: StoreFactory) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        await store.add(job(1), BY_COLLECTOR, Duplicates.SAME_RUN)
        await settled(store)
        await correct(store, "job-1", None)
        await settled(store)
        assert (await store.aggregate(QUERIES[1])).groups == ()
        await store.add(job(31), BY_COLLECTOR, Duplicates.SAME_RUN)
        assert await check(store) == len(QUERIES)


async def test_cells_are_filled_from_what_is_stored(stores: StoreFactory) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        await store.add_all(list(map(job, range(100))), BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        await settled(store)
        await store.rollups.start_over()  # as after a migration
        await correct(store, "job-7", None)  # of a day that is not filled yet
        await store.add(job(101), BY_COLLECTOR, Duplicates.SAME_RUN)
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        await store.add(job(102), BY_COLLECTOR, Duplicates.SAME_RUN)
        await correct(store, "job-50", None)
        assert await check(store)
        await settled(store)
        assert await check(store) == len(QUERIES)


async def test_cells_are_kept_up_while_records_come_change_and_go(stores: StoreFactory) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        await store.add_all(list(map(job, range(200))), BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        await store.rollups.start_over()

    async def come(store: SqlRecordStore, first: int) -> None:
        for number in range(first, first + 60, 2):
            await store.add(job(number), BY_COLLECTOR, Duplicates.SAME_RUN)
            await store.replace(job(number - 200, user_id="another"), BY_COLLECTOR)
            await correct(store, f"job-{number - 140}", None)

    async def kept_up(store: SqlRecordStore) -> None:
        for _ in range(20):
            store.rollups.wake()
            await store.rollups.fold()
            await store.aggregate(QUERIES[1])

    async with (
        stores() as store,
        stores() as other,
    ):  # as two daemons on one PostgreSQL
        assert isinstance(store, SqlRecordStore)
        assert isinstance(other, SqlRecordStore)
        async with anyio.create_task_group() as group:
            group.start_soon(come, store, 200)
            group.start_soon(come, other, 201)
            group.start_soon(kept_up, store)
            group.start_soon(kept_up, other)
        await settled(store)
        now = await stored(cast("RecordStore", store))
        assert len(now) == 200
        await check(store)


async def test_changes_are_folded_once_where_two_processes_fold(stores: StoreFactory) -> None:
    async with stores() as store, stores() as other:
        assert isinstance(store, SqlRecordStore)
        assert isinstance(other, SqlRecordStore)
        await store.add_all(list(map(job, range(100))), BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        async with anyio.create_task_group() as group:
            group.start_soon(store.rollups.fold)
            group.start_soon(other.rollups.fold)
        assert await check(store) == len(QUERIES)


async def add_singly(store: SqlRecordStore, numbers: Sequence[int]) -> None:
    for number in numbers:
        await store.add(job(number), BY_COLLECTOR, Duplicates.SAME_RUN)


async def fold_the_rest(store: SqlRecordStore) -> None:
    await store.rollups.fold()
    assert await store._read(waiting_changes()) == 0
    assert await check(store) == len(QUERIES)


async def test_changes_of_many_cells_are_folded_some_at_a_time(
    stores: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        store.rollups.limits = FoldingLimits(cells=10)
        await settled(store)
        monkeypatch.setattr(store.rollups, "wake", lambda: None)
        await add_singly(store, range(40))
        before = await store._read(waiting_changes())
        await store.rollups._fold_some()
        assert 0 < await store._read(waiting_changes()) < before
        await fold_the_rest(store)


async def test_very_many_changes_are_read_some_at_a_time_and_folded_together(
    stores: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        await settled(store)
        monkeypatch.setattr(store.rollups, "wake", lambda: None)
        store.rollups.limits = FoldingLimits(read_at_once=3)
        await add_singly(store, range(40))
        assert await store.rollups._fold_some()
        assert await store._read(waiting_changes()) == 0
        store.rollups.limits = FoldingLimits(read_at_once=3, changes=7)
        await add_singly(store, range(40, 60))
        assert not await store.rollups._fold_some()
        assert 0 < await store._read(waiting_changes()) < 20
        await fold_the_rest(store)


async def test_changes_are_folded_once_the_store_is_quiet(stores: StoreFactory) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        store.rollups.limits = FoldingLimits(worthwhile=10, quiet_seconds=0.05)
        await settled(store)

        async def add(numbers: Sequence[int]) -> None:
            records = list(map(job, numbers))
            await store.add_all(records, BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)

        await add(range(40))
        while await store._read(waiting_changes()):  # noqa: ASYNC110 nothing else says that it is done
            await asyncio.sleep(0.01)
        assert await check(store) == len(QUERIES)
        store.rollups.limits = FoldingLimits(worthwhile=10, quiet_seconds=3_600)
        before = store.rollups._noted
        await add(range(40, 60))
        store.rollups._fold_if_quiet(before)  # not yet: many came
        assert not store.rollups._is_due
        store.rollups._fold_if_quiet(store.rollups._noted)
        assert store.rollups._is_due


async def test_changes_of_few_cells_wait_until_they_are_very_many(
    stores: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        store.rollups.limits = FoldingLimits(cells=10, changes=50)
        await settled(store)
        woken: list[bool] = []
        monkeypatch.setattr(store.rollups, "wake", lambda: woken.append(True))

        async def added(name: str, numbers: Sequence[int]) -> bool:
            woken.clear()
            several = [
                msgspec.structs.replace(job(number), record_id=f"{name}-{at}") for at, number in enumerate(numbers)
            ]
            await store.add_all(several, BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
            return bool(woken)

        assert not await added("one cell", [7] * 40)
        assert await added("further cells", range(100, 109))
        await store.rollups.fold()
        assert not await added("after a folding", [7] * 40)
        assert await added("many of one cell", [7] * 10)


def labelled(number: int) -> Record:
    return job(number, VO=f"vo{number % 4}") if number % 5 else job(number)


async def test_cells_of_keys_are_filled_kept_up_and_dropped(stores: StoreFactory) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        await store.add_all(list(map(labelled, range(200))), BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        await check(store)
        assert await known_of_keys(store) == 0
        store.rollups.keep_by(["VO"])
        await filled(store)
        assert await known_of_keys(store) == len(OF_KEYS)
        await check(store)
        await store.add_all(list(map(labelled, range(200, 260))), BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        await correct(store, "job-86", job(86, VO="another"))  # in no group the first or the last
        await correct(store, "job-89", None)
        assert await known_of_keys(store) == len(OF_KEYS)  # with what has not been folded
        await check(store)
        await settled(store)
        assert await known_of_keys(store) == len(OF_KEYS)
        await check(store)
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        await store.add(labelled(300), BY_COLLECTOR, Duplicates.SAME_RUN)  # as a command, which is not told of keys
        assert await known_of_keys(store) == len(OF_KEYS)
        await check(store)
        store.rollups.keep_by([])
        await filled(store)
        assert 0 < await known_of_keys(store) < len(OF_KEYS)  # the number of cores is left
        await store.rollups.fold()
        text = label_text("site0", "group0", None, ("VO",), (("vo1",),))
        assert await store._read(ask("find_rollup_labels", digests=as_json([label_row(text).digest]))) == []
        await check(store)


async def test_days_of_a_zone_have_cells(stores: StoreFactory) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        changed = [  # around both changes of the clocks in 2024, and a day in 1969
            msgspec.structs.replace(job(at), start_time=begun, stop_time=begun + timedelta(minutes=20 * at))
            for begun in (datetime(2024, 3, 30, 20, tzinfo=UTC), datetime(2024, 10, 26, 20, tzinfo=UTC))
            for at in range(400 + begun.month, 480)
        ]
        early = msgspec.structs.replace(job(1), start_time=BEGIN - 60 * 365 * DAY, stop_time=BEGIN - 60 * 365 * DAY)
        records = {each.record_id: each for each in [*map(job, range(200)), *changed, early]}
        await store.add_all(list(records.values()), BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        await settled(store)
        assert [query for query in OF_ZONE if scope_of(query, await store.rollups.rolled_keys()) is None] != []
        await check(store)
        store.rollups.keep_by(["VO"], "Europe/Berlin")
        await filled(store)
        keys = await store.rollups.rolled_keys()
        questions = (*OF_ZONE, *OF_ZONE_AND_KEY)
        assert [query for query in questions if await from_rollups(store, query) is None] == []
        assert [list(scope.split_days()) for query in OF_ZONE[:3] if (scope := scope_of(query, keys))] == [[], [], []]
        await check(store)
        await store.add_all([job(at) for at in range(600, 700)], BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        await correct(store, "job-20", job(93))
        await check(store)
        await settled(store)
        await check(store)
        store.rollups.keep_by(["VO"], "America/St_Johns")
        await filled(store)
        assert [query for query in OF_EARLIER_ZONE if await from_rollups(store, query) is None] == []
        await check(store)


async def test_cells_by_other_clocks_of_a_zone_are_filled_anew(
    stores: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a host whose zone database is another one: nothing here is right for it, and its cells are not touched."""
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        theirs = "dates of Europe/Berlin 00000000"

        def by_other_clocks(_zone: str) -> str:
            return theirs

        with monkeypatch.context() as patch:
            patch.setattr("auditord.store.rollups.upkeep.key_of_zone", by_other_clocks)
            store.rollups.keep_by([], "Europe/Berlin")
            while store.rollups._wanted is not None:  # noqa: ASYNC110 the database knows
                await asyncio.sleep(0.01)
        await store.add_all(list(map(job, range(200))), BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        await settled(store)
        await check(store)
        assert theirs in [each.key for each in await store.rollups.rolled_keys() if each.filled_from == END]
        store.rollups.keep_by([], "Europe/Berlin")
        await filled(store)
        assert [query for query in OF_ZONE if await from_rollups(store, query) is None] == []
        await check(store)


async def test_a_new_store_has_nothing_to_fill(stores: StoreFactory) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        store.rollups.keep_by(["VO"])
        await filled(store)
        await store.add_all(list(map(labelled, range(50))), BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)
        assert await known_of_keys(store) == len(OF_KEYS)
        await store.rollups.fold()
        assert await known_of_keys(store) == len(OF_KEYS)
        await check(store)


async def test_cells_of_keys_are_filled_while_records_come_change_and_go(stores: StoreFactory) -> None:
    async with stores() as store, stores() as other:  # as two daemons on one PostgreSQL
        assert isinstance(store, SqlRecordStore)
        assert isinstance(other, SqlRecordStore)
        await store.add_all(list(map(labelled, range(200))), BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)

        async def come(store: SqlRecordStore, first: int) -> None:
            for number in range(first, first + 60, 2):
                await store.add(labelled(number), BY_COLLECTOR, Duplicates.SAME_RUN)
                await store.replace(job(number - 200, VO="another"), BY_COLLECTOR)
                await correct(store, f"job-{number - 140}", None)
                await store.rollups.fold()

        async with anyio.create_task_group() as group:
            group.start_soon(come, store, 200)
            group.start_soon(come, other, 201)
            store.rollups.keep_by(["VO"])
            await store.aggregate(OF_KEYS[0])
        await settled(store)
        await filled(store)
        await check(store)
        assert len(await stored(cast("RecordStore", store))) == 200


async def test_a_key_is_filled_anew_where_changes_do_not_tell_it_apart(stores: StoreFactory) -> None:
    async with stores() as store:
        assert isinstance(store, SqlRecordStore)
        store.rollups.keep_by(["VO"])
        await filled(store)
        record = labelled(3)
        await store.add(record, BY_COLLECTOR, Duplicates.SAME_RUN)
        await store._write(lambda: ask("forget_all_rollup_changes"))
        row = make_row(record)
        late = RollupChanges(())  # by a process that has not heard of the key
        late.add(row, (await store._sources.numbers(BY_COLLECTOR, [record]))[1][0])
        await store._write(lambda: note(late))
        assert await from_rollups(store, OF_KEYS[0]) is None
        await check(store)
        await store.rollups.fold()
        await filled(store)
        assert await known_of_keys(store) == len(OF_KEYS)
        await check(store)


@pytest.mark.slow
@given(events=st.lists(EVENTS, min_size=1, max_size=16))
@settings(
    deadline=None,
    max_examples=int(__import__("os").environ.get("EX", "25")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_sums_are_those_of_the_records_after_any_history(
    store_factory: Callable[[Path], StoreFactory], events: Sequence[Event]
) -> None:
    with TemporaryDirectory() as folder:
        async with store_factory(Path(folder))() as store:
            assert isinstance(store, SqlRecordStore)
            for event in events:
                await happen(store, event)
            await check(store)
            await store.rollups.fold()
            await filled(store)
            await check(store)
