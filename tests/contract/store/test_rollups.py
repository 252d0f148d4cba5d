"""Roll-ups and counts give what the records give, whatever has happened to these, on both stores.

Each answer is compared with a plain evaluation of the records: with cells that have read nothing of the feed, a part of
it, and all of it.
"""

# pyright: reportPrivateUsage=false

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from os import environ
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, LiteralString, cast
from unittest.mock import patch

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auditord.store import Action, Amendment, Duplicates, Provenance
from auditord.store.aggregates import NotRolledUp
from auditord.store.dialects import Sql
from auditord.store.rollups.cells import CORES_KEY, FIRST_DAY, join_keys
from auditord.store.rollups.folding import fold_slices
from auditord.store.rollups.scope import MOST_SPLIT_DAYS, scope_of
from auditord.store.rollups.upkeep import FoldingLimits
from auditord.store.store import RecordStore, Sums
from auditord.store.work import Work, atomic, execute
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
from auditord_hookspecs.vocabulary import has_both_forms
from auditord_hookspecs.wire import decode_record
from tests.contract.store.conftest import COUNTED_KEYS, StoreFactory
from tests.contract.store.feeds import settled
from tests.lake_in_memory import MemoryLake, release
from tests.summed_records import aggregate_records

pytestmark = pytest.mark.anyio

BEGIN: Final = datetime(2024, 1, 29, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
DAY: Final = 24 * HOUR
BY_COLLECTOR: Final = Provenance(BEGIN, "task:slurm")
SITE, GROUP, USER = MetaValue("site_id", "site"), MetaValue("group_id", "group"), MetaValue("user_id", "user")
USAGE: Final = (ComponentUsage("Cores", ("HS23", "none")), ComponentUsage("Memory"), ComponentUsage("Other", ("HS23",)))
CPU_USAGE: Final = (ComponentUsage("TotalCPU"), ComponentUsage("Cores"))


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
    AggregateQuery(by=(SITE, ComponentPresent("Cores"), ComponentPresent("TotalCPU")), usage=CPU_USAGE),
    AggregateQuery(by=(ComponentPresent("Memory"), ComponentPresent("GPU")), usage=CPU_USAGE),
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
"""Questions about a key, and about the number of cores, which cells of their own or of the first set answer."""
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
OF_USERS_AND_KEY: Final = (
    AggregateQuery(MetaContains("VO", "x"), (USER, CalendarPeriod(CalendarUnit.MONTH)), USAGE),
    AggregateQuery(AllOf((MetaContains("VO", "x"), *stopped(day(1) + HOUR, day(40)))), (USER, SITE), USAGE),
    AggregateQuery(AllOf((MetaContains("user_id", "u"), *stopped(day(-90), day(90)))), (VO, GROUP), USAGE),
    AggregateQuery(MetaContainsAny("user_id", ("u", "user1")), (VO, USER, MONTH_HERE), USAGE, None, day(3)),
    AggregateQuery(AnyOf((MetaLacks("VO", "y"), MetaAbsent("user_id"))), (VO, ComponentPresent("TotalCPU")), CPU_USAGE),
)
"""Questions that cells of a key by user answer."""
OTHERS: Final = (
    AggregateQuery(by=(USER, DAY_HERE), usage=USAGE[:1]),
    AggregateQuery(AllOf((MetaLacks("user_id", "u"), *stopped(day(0) - HOUR, day(4) - HOUR))), (DAY_HERE,), USAGE[:1]),
    AggregateQuery(by=(USER, VO), usage=USAGE[:1]),
    AggregateQuery(by=(VO, CORES), usage=USAGE[:1]),
    AggregateQuery(MetaContains("user_id", "u"), (CORES,)),
)
"""Questions that none answers."""
ALL_OTHERS: Final = (*OF_KEYS, *OF_ZONE, *OF_ZONE_AND_KEY, *OF_EARLIER_ZONE, *OF_USERS_AND_KEY, *OTHERS)
"""Questions for stores with cells of a key or of a zone: without these, each is answered as one of the above."""

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
AMOUNTS: Final = st.sampled_from([0, 1, 8, 8, 10**12, 2**43 - 1, 2**43, 2**53 - 1])
SCORES: Final = st.sampled_from([(), (Score("HS23", 9.2),), (Score("HS23", 18.5), Score("HS06", 1 / 3))])
NAMES: Final = st.sampled_from(["Cores", "CoreSeconds", "TotalCPU", "Memory", "MemorySeconds", "Other"])
COMPONENTS: Final = (
    st.lists(st.builds(Component, NAMES, AMOUNTS, SCORES), max_size=3)
    .map(tuple)
    .filter(lambda components: has_both_forms(each.name for each in components) is None)
)
HUGE: Final = st.just((Component("Memory", MAX_AMOUNT, ()), Component("Memory", MAX_AMOUNT, ())))
SOME_COMPONENTS: Final = st.one_of(COMPONENTS, COMPONENTS, COMPONENTS, HUGE, HUGE.map(lambda pair: pair[:1]))
ZONES: Final = st.sampled_from(["UTC", "Europe/Berlin", "Europe/Berlin", "America/St_Johns"])
HOURS: Final = st.integers(0, 30).map(lambda number: BEGIN + number * 4 * HOUR)
ALL_IDS: Final = ("r0", "r1", "r2", "r3", "r4")
IDS: Final = st.sampled_from(ALL_IDS)

BY_HAND: Final = FoldingLimits(unread=10**9, quiet_seconds=3_600)
"""Nothing is folded unless a test asks for it."""


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
class Release:
    """Records of some hours are released; each comes back before it is asked for."""

    before: datetime


@dataclass(frozen=True)
class Fold:
    """All consumers read on, as the daemon lets them now and then; about so many records, or all."""

    limit: int | None


@dataclass(frozen=True)
class Fail:
    """A process is killed in the middle of folding."""


@dataclass(frozen=True)
class StartOver:
    """All cells are dropped."""


@dataclass(frozen=True)
class Keep:
    """Another configuration: other keys get cells, which are filled before anything else happens, or meanwhile."""

    keys: tuple[str, ...]
    with_users: tuple[str, ...]
    waits: bool
    zone: str


Change = Add | AddAll | Stop | Replace | Correct | Redact
Event = Change | Release | Fold | Fail | StartOver | Keep

EVENTS: Final = st.one_of(
    st.builds(Add, records()),
    st.builds(AddAll, st.lists(records(), max_size=4, unique_by=lambda each: each.record_id).map(tuple)),
    st.builds(Stop, IDS, HOURS),
    st.builds(Replace, records()),
    st.builds(Correct, IDS, records() | st.none()),
    st.builds(Redact, IDS, st.sampled_from(["user_id", "VO"])),
    st.builds(Release, HOURS),
    st.builds(Fold, st.sampled_from([1, 1, 2, None])),
    st.builds(Fail),
    st.builds(StartOver),
    st.builds(
        Keep,
        st.sampled_from([(), ("VO",), ("other", "VO", "site_id")]),
        st.sampled_from([(), ("VO",), ("group_id", "VO")]),
        st.booleans(),
        ZONES,
    ),
)


class Killed(Exception):
    """An error that no process survives."""


async def stored(store: RecordStore) -> list[Record]:
    async with store.stream(RecordQuery()) as pages:
        return [decode_record(document) async for page in pages for document in page]


async def happen(store: RecordStore, event: Event) -> None:
    match event:
        case Release(before):
            await release(store, cast("MemoryLake", store.lake), ALL_IDS, before)
        case Keep(keys, with_users, waits, zone):
            store.rollups.keep_by(keys, zone, with_users=with_users)
            if waits:
                await folded(store)
        case Fold(limit):
            await (store.rollups.fold() if limit is None else store._write(atomic(lambda: fold(store, limit))))
        case Fail():
            with suppress(Killed):
                await store._write(atomic(lambda: fail(store)))
        case StartOver():
            await store.rollups.start_over()
        case _:
            await change(store, event)


def fold(store: RecordStore, limit: int) -> Work[bool]:
    return (yield from fold_slices(limit, store._dialect))


def fail(store: RecordStore) -> Work[None]:
    yield from fold(store, 100)
    raise Killed


async def change(store: RecordStore, event: Change) -> None:
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


async def correct(store: RecordStore, record_id: str, wanted: Record | None) -> None:
    if (document := await store.get(record_id)) is not None:
        after = None
        if wanted is not None:
            after = Record(record_id, wanted.start_time, wanted.components, wanted.stop_time, wanted.meta)
        action = Action.DELETE if after is None else Action.CORRECT
        await store.amend([Amendment(action, document, after, "a test")], BY_COLLECTOR)


async def from_rollups(store: RecordStore, query: AggregateQuery) -> Aggregates | None:
    """The answer of the roll-ups; None if they do not know all of it."""
    try:
        answer, _, scope = await store.sums(query, from_cells=True)
    except NotRolledUp:
        return None
    return None if scope is None else answer


async def answered(store: RecordStore, query: AggregateQuery) -> tuple[Aggregates, bool]:
    """The store's answer, and whether roll-ups gave it."""
    summed: list[Sums] = []

    async def sums(query: AggregateQuery, *, from_cells: bool) -> Sums:
        summed.append(await ask(query, from_cells=from_cells))
        return summed[-1]

    ask = store.sums
    with patch.object(store, "sums", sums):
        return await store.aggregate(query), summed[-1].scope is not None


async def check(store: RecordStore, *others: AggregateQuery) -> int:
    """Check that sums and counts are those of the records; returns how many of QUERIES the roll-ups knew."""
    now, known = await stored(store), list[bool]()
    for query in (*QUERIES, *others):
        answer, from_cells = await answered(store, query)
        assert answer == aggregate_records(now, query)
        known.append(from_cells)
    await check_counts(store, now)
    return sum(known[: len(QUERIES)])


async def check_counts(store: RecordStore, now: Sequence[Record]) -> None:
    counts = await store.counts()
    assert counts.total == len(now)
    for key in COUNTED_KEYS:
        assert counts.per_value[key] == Counter(value for each in now for value in set((each.meta or {}).get(key, ())))


async def known_of_keys(store: RecordStore) -> int:
    """The number of questions about keys that the roll-ups answer."""
    return len([query for query in OF_KEYS if await from_rollups(store, query) is not None])


async def folded(store: RecordStore) -> None:
    """Wait until the configured sets of cells, and the counts, have read the whole feed."""
    while store.rollups._wanted is not None:
        store.rollups.wake()
        await asyncio.sleep(0.001)
    await settled(store)
    await store.rollups.fold()


async def cells(store: RecordStore) -> int:
    ((number,),) = await store._read(execute(Sql(f"SELECT count(*) FROM {store._dialect.schema}rollups")))  # noqa: S608 literals
    return int(number)


async def texts_in_database(store: RecordStore, table: LiteralString) -> str:
    select = Sql(f"SELECT * FROM {store._dialect.schema}{table}")  # noqa: S608 literals
    return str(await store._read(execute(select)))


def job(number: int, **meta: str) -> Record:
    start, cores = BEGIN + number * HOUR, Component("Cores", number % 7, (Score("HS23", 9.2 + number % 3),))
    labels = {"site_id": f"site{number % 2}", "group_id": f"group{number % 3}", "user_id": f"user{number % 5}", **meta}
    components = (cores, Component("Memory", 10**10 + number, ()), Component(f"Other{number % 2}", 1, ()))
    cpu_time = (Component("TotalCPU", number, ()),) if number % 3 else ()
    return Record(
        f"job-{number}", start, (*components, *cpu_time), start + HOUR, {key: (text,) for key, text in labels.items()}
    )


async def put(store: RecordStore, *records: Record) -> None:
    await store.add_all(records, BY_COLLECTOR, Duplicates.SAME_RUN, atomic=True)


@pytest.fixture
async def store(stores: StoreFactory) -> AsyncIterator[RecordStore]:
    async with stores() as opened:
        opened.rollups.limits = BY_HAND
        yield opened


async def test_roll_ups_know_the_answers(store: RecordStore) -> None:
    await put(store, *map(job, range(300)))
    assert await check(store) > 0  # from the feed alone
    await folded(store)
    assert await check(store) == len(QUERIES)  # from cells alone
    await put(store, job(300))
    await correct(store, "job-150", None)
    assert await check(store) == len(QUERIES)  # from both


async def test_adding_a_record_writes_one_table(store: RecordStore) -> None:
    await put(store, *map(job, range(300)))
    assert await cells(store) == 0
    for table in ("removals", "record_counts", "rollup_components"):
        assert await texts_in_database(store, table) == "[]"


async def test_a_feed_that_is_far_ahead_of_the_cells_is_read_by_its_times(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, *map(job, range(100)))
    await folded(store)
    await put(store, *map(job, range(100, 200)))
    await correct(store, "job-50", job(93))
    monkeypatch.setattr("auditord.store.rollups.scope._FAR_BEHIND", 0)
    assert await check(store) == len(QUERIES)


async def test_weeks_of_a_zone_over_centuries_have_a_bounded_statement(store: RecordStore) -> None:
    """Records long before the days that cells answer, and behind them, are read one by one."""
    scope = scope_of(AggregateQuery(by=(WEEK_ELSEWHERE,), usage=USAGE))
    assert scope is not None
    narrow = scope.within(-10_000, 50_000)
    assert narrow is not None
    assert len(narrow.split_days()) == MOST_SPLIT_DAYS < len(scope.split_days())
    moved = [
        msgspec.structs.replace(job(at), start_time=moment, stop_time=moment + HOUR)
        for at, moment in enumerate(datetime(year, 3, 4, 3, tzinfo=UTC) for year in (1955, 1999, 2020, 2024, 2055))
    ]
    await put(store, *moved, job(9))
    await folded(store)
    assert await check(store) == len(QUERIES)


async def test_the_first_record_of_a_cell_is_deleted(store: RecordStore) -> None:
    await put(store, *map(job, range(220)))  # the cells of months with job-0 have job-210 as well
    await folded(store)
    await correct(store, "job-0", None)
    assert await check(store) < len(QUERIES)
    await folded(store)
    assert await check(store) < len(QUERIES)


async def test_the_first_record_of_a_cell_is_corrected(store: RecordStore) -> None:
    """The version that takes its place stopped at the same time: the ends of cells are still known."""
    await put(store, *map(job, range(20)))
    await folded(store)
    wanted = msgspec.structs.replace(job(0), components=(*job(0).components[:1], Component("Memory", 7, ())))
    await correct(store, "job-0", wanted)
    assert await check(store) == len(QUERIES)
    await folded(store)
    assert await check(store) == len(QUERIES)


async def test_a_score_that_no_record_has_any_more_is_in_no_answer(store: RecordStore) -> None:
    amounts = ((0, 9.2), (0, 18.5), (4, 9.2))
    parts = [(Component("Cores", amount, (Score("HS23", score),)),) for amount, score in amounts]
    await put(store, *[msgspec.structs.replace(job(at), components=each) for at, each in enumerate(parts)])
    await folded(store)
    await correct(store, "job-1", msgspec.structs.replace(job(1), components=parts[0]))
    await check(store)
    await folded(store)
    await check(store)


async def test_a_correction_that_takes_the_cpu_time_away_leaves_the_others_ends(store: RecordStore) -> None:
    parts = (Component("Cores", 2, ()), Component("TotalCPU", 60, ()))
    meta: dict[str, tuple[str, ...]] = {"user_id": ("u",)}
    await put(store, *[Record(f"r{at}", BEGIN, parts, BEGIN + (at + 1) * HOUR, meta) for at in range(3)])
    await folded(store)
    await correct(store, "r0", Record("r0", BEGIN, parts[:1], BEGIN + HOUR, meta))
    await check(store)
    await folded(store)
    assert 0 < await check(store) < len(QUERIES)  # the first stop with a CPU time is only known from the records


async def test_nothing_keeps_a_name_that_is_in_no_record(store: RecordStore) -> None:
    meta: dict[str, tuple[str, ...]] = {"site_id": ("a",), "user_id": ("alice",)}
    await put(store, *[Record(each, BEGIN, (Component("X", 1, ()),), BEGIN + HOUR, meta) for each in ("one", "two")])
    await folded(store)
    await store.begin_lake()
    await store.fill_lake("a lake that is away")  # so that it is behind
    await store.redact(["one"], ["user_id"])
    await folded(store)
    assert "alice" in await texts_in_database(store, "rollups")
    await store.redact(["two"], ["user_id"])
    await folded(store)
    for table in ("rollups", "rollup_components", "record_counts", "removals"):
        assert "alice" not in await texts_in_database(store, table)
    assert "one" in await texts_in_database(store, "removals")
    assert await check(store) > 0


async def test_former_versions_are_kept_until_all_consumers_have_passed_them(store: RecordStore) -> None:
    await put(store, job(1), job(2))
    await folded(store)
    await store.begin_lake()
    await store.fill_lake("a-table")
    await settled(store)
    first = await store.lake_batch(0, 10)
    await store.lake_batch(first.number, 10)
    await correct(store, "job-1", None)
    await folded(store)
    assert "job-1" in await texts_in_database(store, "removals")
    second = await store.lake_batch(first.number, 10)
    assert list(second.known) == ["job-1"]
    await store.lake_batch(second.number, 10)
    await store.rollups.fold()
    assert await texts_in_database(store, "removals") == "[]"


async def test_the_last_record_of_a_cell_is_deleted_and_another_comes(store: RecordStore) -> None:
    await put(store, job(1))
    await folded(store)
    await correct(store, "job-1", None)
    await folded(store)
    assert (await cells(store), (await store.aggregate(QUERIES[1])).groups) == (0, ())
    await put(store, job(31))
    assert await check(store) > 0
    await folded(store)
    assert await check(store) == len(QUERIES)


async def test_cells_are_filled_anew_from_what_is_stored(stores: StoreFactory) -> None:
    async with stores() as store:
        await put(store, *map(job, range(100)))
        await folded(store)
        await store.rollups.start_over()
        await correct(store, "job-7", None)
        await put(store, job(101))
    async with stores() as store:
        await put(store, job(102))
        await correct(store, "job-50", None)
        assert await check(store)
        await folded(store)
        assert await check(store) == len(QUERIES)


async def test_two_daemons_fold_while_records_come_change_and_go(stores: StoreFactory) -> None:
    async with stores() as store:
        store.rollups.keep_by(["VO"])
        await put(store, *map(labelled, range(200)))

    async def come(store: RecordStore, first: int) -> None:
        for number in range(first, first + 60, 2):
            await put(store, labelled(number))
            await store.replace(job(number - 200, user_id="another", VO="another"), BY_COLLECTOR)
            await correct(store, f"job-{number - 140}", None)

    async def kept_up(store: RecordStore) -> None:
        for _ in range(20):
            await store._write(atomic(lambda: fold(store, 7)))
            await store.aggregate(QUERIES[1])

    async with stores() as store, stores() as other:
        async with anyio.create_task_group() as group:
            for each in (store, other):
                group.start_soon(come, each, 200 + (each is other))
                group.start_soon(kept_up, each)
        await check(store, *OF_KEYS)
        await folded(store)
        assert len(await stored(store)) == 200
        await check(store, *OF_KEYS)


async def test_slices_are_bounded(store: RecordStore) -> None:
    for number in range(20):
        await put(store, job(number))
    await settled(store)
    slices = 1
    while not await store._write(atomic(lambda: fold(store, 3))):
        slices += 1
        await check(store)
    assert slices >= 20 / 3
    assert await check(store) == len(QUERIES)


async def test_changes_are_folded_once_the_store_is_quiet_or_they_are_many(stores: StoreFactory) -> None:
    async def wait_for_cells(store: RecordStore) -> None:
        while not await cells(store):  # noqa: ASYNC110 nothing else says that it is done
            await asyncio.sleep(0.01)

    async with stores() as store:
        store.rollups.limits = FoldingLimits(quiet_seconds=0.01)
        await put(store, job(1))
        await wait_for_cells(store)
        store.rollups.limits = FoldingLimits(unread=10, quiet_seconds=3_600)
        await store.rollups.start_over()
        await put(store, *map(job, range(40, 60)))
        await wait_for_cells(store)


def labelled(number: int) -> Record:
    return job(number, VO=f"vo{number % 4}") if number % 5 else job(number)


async def test_cells_of_keys_are_filled_kept_up_and_dropped(stores: StoreFactory) -> None:
    async with stores() as store:
        await put(store, *map(labelled, range(200)))
        await check(store, *ALL_OTHERS)
        await folded(store)
        by_cores = await known_of_keys(store)
        assert 0 < by_cores < len(OF_KEYS)
        store.rollups.keep_by(["VO"])
        await folded(store)
        assert await known_of_keys(store) == len(OF_KEYS)
        await check(store, *OF_KEYS)
        await put(store, *map(labelled, range(200, 260)))
        await correct(store, "job-86", job(86, VO="another"))  # in no group the first or the last
        await correct(store, "job-89", None)
        assert await known_of_keys(store) == len(OF_KEYS)  # with what has not been folded
        await check(store, *OF_KEYS)
        await folded(store)
        assert await known_of_keys(store) == len(OF_KEYS)
        await check(store, *ALL_OTHERS)
    async with stores() as store:
        await put(store, labelled(300))  # as a command, which is not told of keys
        assert await known_of_keys(store) == len(OF_KEYS)
        await check(store, *OF_KEYS)
        store.rollups.keep_by([])
        await folded(store)
        assert await known_of_keys(store) == by_cores
        assert "vo1" not in await texts_in_database(store, "rollups")
        await check(store, *OF_KEYS)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
async def test_cells_of_many_keys_are_folded_together_until_all_is_read(store: RecordStore, zone: str) -> None:
    keys = ['quoted "key"', "back\\slash", "dotted.key", *[f"key{number}" for number in range(52)]]
    labels = [{key: f"v{number % (2 + at)}" for at, key in enumerate(keys) if number % 3} for number in range(30)]
    await put(store, *[job(number, **some) for number, some in enumerate(labels)])
    store.rollups.keep_by(keys[:-1], zone)
    with anyio.fail_after(120):
        await folded(store)
        store.rollups.keep_by(keys, zone)  # the last one begins alone
        await put(store, job(30, **labels[1]))
        await folded(store)
        await put(store, job(31, **labels[2]))
        await folded(store)
    assert len({each.position for each in await store.rollups.sets()}) == 1
    questions = [AggregateQuery(by=(MetaValue(key),), usage=USAGE) for key in (*keys[:5], *keys[-3:])]
    assert [query for query in questions if await from_rollups(store, query) is None] == []
    await check(store, *questions)


async def test_cells_of_a_key_by_user_are_filled_kept_up_and_dropped(store: RecordStore) -> None:
    async def known() -> int:
        return len([query for query in OF_USERS_AND_KEY if await from_rollups(store, query) is not None])

    await put(store, *map(labelled, range(200)), job(201, VO="x"), job(202, VO="x", user_id="u"))
    await folded(store)
    assert await known() == 0
    store.rollups.keep_by(["VO", "users by VO", "user_id"], with_users=["VO", "site_id", "VO"])
    await folded(store)
    assert [each.key for each in await store.rollups.sets()] == [None, "users by VO"]
    assert await known() == len(OF_USERS_AND_KEY)
    assert await known_of_keys(store) == len(OF_KEYS)
    await check(store, *OF_USERS_AND_KEY, *OF_KEYS)
    await put(store, *map(labelled, range(300, 360)))
    await correct(store, "job-86", job(86, VO="another", user_id="v"))
    await correct(store, "job-201", None)
    await store.redact(["job-202"], ["user_id"])
    await check(store, *OF_USERS_AND_KEY, *OF_KEYS)
    await folded(store)
    assert await known() == len(OF_USERS_AND_KEY)
    await check(store, *ALL_OTHERS)
    store.rollups.keep_by([], "Europe/Berlin", with_users=["VO"])
    await folded(store)
    assert await known() == len(OF_USERS_AND_KEY)
    await check(store, *ALL_OTHERS)
    store.rollups.keep_by([])
    await folded(store)
    assert await known() == 0
    await check(store, *OF_USERS_AND_KEY)


async def test_days_of_a_zone_have_cells(store: RecordStore) -> None:
    changed = [  # around both changes of the clocks in 2024, and a day in 1969
        msgspec.structs.replace(job(at), start_time=begun, stop_time=begun + timedelta(minutes=20 * at))
        for begun in (datetime(2024, 3, 30, 20, tzinfo=UTC), datetime(2024, 10, 26, 20, tzinfo=UTC))
        for at in range(400 + begun.month, 480)
    ]
    early = msgspec.structs.replace(job(1), start_time=BEGIN - 60 * 365 * DAY, stop_time=BEGIN - 60 * 365 * DAY)
    records = {each.record_id: each for each in [*map(job, range(200)), *changed, early]}
    await put(store, *records.values())
    await folded(store)
    assert [query for query in OF_ZONE if await from_rollups(store, query) is None] != []
    await check(store)
    store.rollups.keep_by(["VO"], "Europe/Berlin")
    await folded(store)
    sets = await store.rollups.sets()
    questions = (*OF_ZONE, *OF_ZONE_AND_KEY)
    assert [query for query in questions if await from_rollups(store, query) is None] == []
    assert [list(scope.split_days()) for query in OF_ZONE[:3] if (scope := scope_of(query, sets))] == [[], [], []]
    await check(store, *ALL_OTHERS)
    await put(store, *[job(at) for at in range(600, 700)])
    await correct(store, "job-20", job(93))
    await check(store, *questions)
    await folded(store)
    await check(store, *questions)
    store.rollups.keep_by(["VO"], "America/St_Johns")
    await folded(store)
    assert [query for query in OF_EARLIER_ZONE if await from_rollups(store, query) is None] == []
    await check(store, *OF_KEYS, *OF_EARLIER_ZONE)


async def test_cells_by_other_clocks_of_a_zone_are_left_to_their_host(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a host whose zone database is another one: nothing here is right for it, and its cells are not touched."""
    theirs = "dates of Europe/Berlin 00000000"

    def by_other_clocks(_zone: str) -> str:
        return theirs

    with monkeypatch.context() as patch:
        patch.setattr("auditord.store.rollups.upkeep.key_of_zone", by_other_clocks)
        store.rollups.keep_by([], "Europe/Berlin")
        await folded(store)
    await put(store, *map(job, range(200)))
    await folded(store)
    await check(store, *OF_ZONE)
    assert [each.position for each in await store.rollups.sets() if each.key == join_keys(theirs, CORES_KEY)] == [0]
    store.rollups.keep_by([], "Europe/Berlin")
    await folded(store)
    assert [query for query in OF_ZONE if await from_rollups(store, query) is None] == []
    await check(store, *OF_ZONE)


async def test_consumers_say_what_they_have_not_read(store: RecordStore) -> None:
    await folded(store)
    assert set((await store.counts()).unread.values()) == {None}
    await store.add(job(1), Provenance(day(9), "task:slurm"), Duplicates.SAME_RUN)
    assert set((await store.counts()).unread.values()) == {day(9)}
    await folded(store)
    assert set((await store.counts()).unread.values()) == {None}
    assert all(each.filled_from == FIRST_DAY for each in await store.rollups.sets())


@pytest.mark.slow
@given(events=st.lists(st.tuples(st.booleans(), EVENTS), min_size=1, max_size=20))
@settings(
    deadline=None,
    max_examples=int(environ.get("AUDITORD_HISTORIES", "25")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_answers_are_those_of_the_records_after_any_history(
    store_factory: Callable[[Path], StoreFactory], events: Sequence[tuple[bool, Event]]
) -> None:
    """Two daemons use one store."""
    memory = MemoryLake()
    with TemporaryDirectory() as folder:
        async with store_factory(Path(folder))() as store, store_factory(Path(folder))() as other:
            for each in (store, other):
                each.rollups.limits = BY_HAND
                each.lake = memory
            for of_other, event in events:
                await happen(other if of_other else store, event)
            await store.recall(ALL_IDS)
            await check(store, *ALL_OTHERS)
            await folded(store)
            await check(store, *ALL_OTHERS)
