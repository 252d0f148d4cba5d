"""Aggregates: every store gives what a plain evaluation gives, for any records, whatever is asked."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from auditord.store import Duplicates, Provenance
from auditord.store.aggregates import Folding, Row
from auditord.store.reading import StoredRecords
from auditord.store.store import RecordStore
from auditord_hookspecs import Component, Record, RecordUpdate, Score, TooManyGroups, Window, aggregates
from auditord_hookspecs.query import (
    AllOf,
    AnyOf,
    Comparison,
    ComponentCompares,
    Condition,
    ImplausibleCpuTime,
    IsOpen,
    MetaAbsent,
    MetaContains,
    MetaContainsAny,
    MetaLacks,
    PlaceCompares,
    RuntimeCompares,
    TimeCompares,
    TimeField,
)
from auditord_hookspecs.records import MAX_AMOUNT
from auditord_hookspecs.vocabulary import has_both_forms
from tests.contract.store.conftest import StoreFactory
from tests.summed_records import aggregate_records

pytestmark = pytest.mark.anyio


EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
FIRST = datetime(1, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
PROVENANCE = Provenance(EPOCH)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
EXACT = Context(prec=100)


@asynccontextmanager
async def filled(stores: StoreFactory, records: Sequence[Record]) -> AsyncGenerator[RecordStore, None]:
    async with stores() as store:
        await store.add_all(records, PROVENANCE, Duplicates.SAME_RUN, atomic=True)
        yield store


def shortly_after(days: int, seconds: int, micros: int) -> datetime:
    return EPOCH + timedelta(days, seconds, micros)


# Small worlds, so that records meet each other and the borders of windows; texts that SQL, JSON and paths stumble over.
KEYS = st.sampled_from(
    ["site_id", "site", "group_id", "user_id", "VO", "a.b[0]", 'quo"te', "back\\slash", "ключ", "a\nb"]
)
TEXTS = st.sampled_from(["x", "y", "X", "%", 'quo"te', "back\\", "\\u005c", "знач", "1", "null", "[]", "a\nb"])
HELD_NAMES = ("Cores", "Cores", "Memory", "GPU", "CoreSeconds", "CoreSeconds", "MemorySeconds", "GPUSeconds")
NAMES = st.sampled_from([*HELD_NAMES, "TotalCPU", "Other", "ядра", 'quo"te', "back\\slash"])
AMOUNTS = st.sampled_from([0, 1, 8, 8, 2**31 - 1, 2**31, 2**53 + 1, MAX_AMOUNT - 1, MAX_AMOUNT])
SCORE_NAMES = st.sampled_from(["HEPSPEC06", "hepscore23", 'quo"te'])
SCORE_VALUES = st.sampled_from([0.0, 0.1, 9.2, 9.2, 1 / 3, 1e22, 5e-324, 1.7976931348623157e308])
TIMES = st.one_of(
    st.builds(
        shortly_after,
        st.sampled_from([-40, -1, 0, 0, 0, 1, 31, 400]),
        st.integers(-2, 2),
        st.sampled_from([0, 0, 1, 500_000, 999_999]),
    ),
    st.sampled_from([FIRST, LAST, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)]),
)
METAS = st.none() | st.dictionaries(KEYS, st.lists(TEXTS, max_size=2).map(tuple), max_size=4)
SCORES = st.lists(st.builds(Score, SCORE_NAMES, SCORE_VALUES), max_size=2).map(tuple)
COMPONENTS = (
    st.lists(st.builds(Component, NAMES, AMOUNTS, SCORES), max_size=3)
    .map(tuple)
    .filter(lambda components: has_both_forms(each.name for each in components) is None)
)
RECORDS = st.lists(
    st.builds(Record, st.text("abcdef", min_size=1, max_size=3), TIMES, COMPONENTS, st.none() | TIMES, METAS),
    max_size=25,
    unique_by=lambda each: each.record_id,
)
COMPARISONS = st.sampled_from(Comparison)
LEAVES: st.SearchStrategy[Condition] = st.one_of(
    st.just(AllOf()),
    st.just(IsOpen()),
    st.just(ImplausibleCpuTime()),
    st.builds(TimeCompares, st.sampled_from(TimeField), COMPARISONS, TIMES),
    st.builds(RuntimeCompares, COMPARISONS, st.integers(-4, 4)),
    st.builds(MetaContains, KEYS, TEXTS),
    st.builds(MetaLacks, KEYS, TEXTS),
    st.builds(MetaContainsAny, KEYS, st.lists(TEXTS, max_size=2).map(tuple)),
    st.builds(MetaAbsent, KEYS),
    st.builds(ComponentCompares, NAMES, COMPARISONS, AMOUNTS),
    st.builds(PlaceCompares, COMPARISONS, TIMES, st.text("abcdef", min_size=1, max_size=3)),
)
NESTED = st.just(AllOf()) | LEAVES | st.builds(AllOf, st.lists(LEAVES, max_size=2).map(tuple))
CONDITIONS = NESTED | st.builds(AnyOf, st.lists(NESTED, max_size=2).map(tuple))
FACTORS = st.sampled_from([Decimal("0.25"), Decimal("1.5")])
DIMENSIONS: st.SearchStrategy[aggregates.Dimension] = st.one_of(
    st.sampled_from(
        [
            aggregates.MetaValue("site_id", "site"),
            aggregates.MetaValue("site_id"),
            aggregates.MetaValue("site"),
            aggregates.MetaValue("user_id", "VO"),
        ]
    ),
    st.lists(KEYS, min_size=1, max_size=3, unique=True).map(lambda keys: aggregates.MetaValue(*keys)),
    st.builds(aggregates.ComponentAmount, NAMES),
    st.builds(aggregates.ComponentPresent, NAMES),
    st.builds(aggregates.ExceedsRuntime, NAMES, FACTORS, st.none() | NAMES),
    st.builds(aggregates.ScoreValue, NAMES, SCORE_NAMES),
    st.builds(
        aggregates.CalendarPeriod,
        st.sampled_from(aggregates.CalendarUnit),
        st.sampled_from(TimeField),
        st.sampled_from(["UTC", "UTC", "Europe/Berlin", "America/St_Johns", "Africa/Abidjan"]),
    ),
)
USAGES = st.builds(aggregates.ComponentUsage, NAMES, st.lists(SCORE_NAMES, max_size=2, unique=True).map(tuple))
WINDOWS = st.lists(TIMES, min_size=2, max_size=2).map(lambda ends: Window(*sorted(ends)))
QUERIES = st.builds(
    aggregates.AggregateQuery,
    CONDITIONS,
    st.lists(DIMENSIONS, max_size=3).map(tuple),
    st.lists(USAGES, max_size=3).map(tuple),
    st.none() | WINDOWS,
    st.none() | TIMES,
)


@given(records=RECORDS, queries=st.lists(QUERIES, min_size=4, max_size=20))
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_answers_equal_a_plain_evaluation(
    store_factory: Callable[[Path], StoreFactory],
    records: Sequence[Record],
    queries: Sequence[aggregates.AggregateQuery],
) -> None:
    with TemporaryDirectory() as folder:
        async with filled(store_factory(Path(folder)), records) as store:
            for query in queries:
                assert await store.aggregate(query) == aggregate_records(records, query)


def scored(name: str, amount: int, *scores: tuple[str, float]) -> Component:
    return Component(name, amount, tuple([Score(*score) for score in scores]))


def job(record_id: str, *components: Component, length: timedelta | None = HOUR, **meta: str) -> Record:
    stop = None if length is None else EPOCH + length
    return Record(record_id, EPOCH, components, stop, {key: (value,) for key, value in meta.items()})


async def check(store: RecordStore, records: Sequence[Record], query: aggregates.AggregateQuery) -> None:
    """That the store answers as the plain evaluation does, and that there is something to answer."""
    expected = aggregate_records(records, query)
    assert expected.groups
    assert await store.aggregate(query) == expected


@pytest.mark.parametrize(
    "key", ["site_id", "site", "VO", "a.b[0]", 'quo"te', "back\\slash", "ключ", "a\nb", "$", "a'b", "*"]
)
async def test_any_key_and_its_aliases(stores: StoreFactory, key: str) -> None:
    metas: list[dict[str, tuple[str, ...]] | None] = [
        None,
        {},
        {key: ()},
        {key: ("x", "y")},
        {key: ("x",), "second": ("z",)},
    ]
    keys = (key, "second", 'seco"nd', "third", "site_id", "site", "unrelated")
    metas.extend({alone: (f"value of {alone}",)} for alone in keys)
    records = [Record(f"r{at}", EPOCH, (), EPOCH + HOUR, meta) for at, meta in enumerate(metas)]
    async with filled(stores, records) as store:
        for other in [(), ("second",), ('seco"nd', "third"), ("site_id", "site")]:
            await check(store, records, aggregates.AggregateQuery(by=(aggregates.MetaValue(key, *other),)))


async def test_periods_begin_and_end_as_in_the_calendar(stores: StoreFactory) -> None:
    ends = [datetime(year, 1, 1, tzinfo=UTC) for year in (2, 1969, 1970, 2021, 2025, 2026, 9999)]
    ends += [datetime(2026, month, 1, tzinfo=UTC) for month in range(2, 13)]
    stops = {end + step for end in ends for step in (-SECOND, timedelta(), SECOND)} | {FIRST, LAST}
    records = [Record(f"r{at}", min(stop, EPOCH), (), stop, None) for at, stop in enumerate(sorted(stops))]
    async with filled(stores, records) as store:
        for unit in aggregates.CalendarUnit:
            await check(store, records, aggregates.AggregateQuery(by=(aggregates.CalendarPeriod(unit),)))


CHANGES = [  # of the clocks in Berlin, and the length of the day in hours
    (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 3, 28, 23, tzinfo=UTC), 23),
    (datetime(2026, 10, 25, 1, tzinfo=UTC), datetime(2026, 10, 24, 22, tzinfo=UTC), 25),
]


@pytest.mark.parametrize(("change", "midnight", "hours"), CHANGES)
async def test_a_day_of_a_zone_lasts_as_long_as_its_clocks_say(
    stores: StoreFactory, change: datetime, midnight: datetime, hours: int
) -> None:
    """A record stops in each half hour of five days around the change: twice as many as hours belong to each day."""
    first = change - timedelta(days=2)
    stops = [first.replace(hour=0) + at * HOUR / 2 for at in range(5 * 48)]
    records = [Record(f"r{at}", stop - HOUR, (), stop, None) for at, stop in enumerate(stops)]
    by_day = aggregates.CalendarPeriod(aggregates.CalendarUnit.DAY, zone="Europe/Berlin")
    async with filled(stores, records) as store:
        await check(store, records, aggregates.AggregateQuery(by=(by_day,)))
        groups = (await store.aggregate(aggregates.AggregateQuery(by=(by_day,)))).groups
    counted = {group.key[0]: group for group in groups}
    here = counted[change.date()]
    assert (here.records, here.first_stop) == (2 * hours, midnight)
    assert {counted[change.date() + timedelta(days=at)].records for at in (-1, 1)} == {48}
    assert sum(group.records for group in groups) == len(records)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns", "Pacific/Kiritimati", "Antarctica/Troll"])
async def test_periods_of_zones_begin_as_their_clocks_say(stores: StoreFactory, zone: str) -> None:
    midnights = [
        datetime(year, month, day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
        for year in (1970, 1996, 2026, 2037, 2099)
        for month in (1, 3, 4, 10, 11)
        for day in (1, 2, 29, 30)
    ]
    stops = [midnight + step for midnight in midnights for step in (-SECOND, timedelta(), SECOND)]
    records = [
        Record(f"r{at}", min(stop, EPOCH), (), stop, None) for at, stop in enumerate(sorted({*stops, FIRST, LAST}))
    ]
    async with filled(stores, records) as store:
        for unit, field in product(aggregates.CalendarUnit, TimeField):
            period = aggregates.CalendarPeriod(unit, field, zone)
            await check(store, records, aggregates.AggregateQuery(by=(period,)))


async def test_every_period_of_a_zone_is_asked_for_with_twenty_components(stores: StoreFactory) -> None:
    """As parameters, the changes of its clocks were more than SQLite and PostgreSQL take in one statement."""
    records = [job("r", *[scored(f"C{at}", 7, ("S", 1.5)) for at in range(20)]), job("open", length=None)]
    periods = [aggregates.CalendarPeriod(unit, zone="Europe/Berlin") for unit in aggregates.CalendarUnit]
    usage = [aggregates.ComponentUsage(f"C{at}", ("S",)) for at in range(20)]
    async with filled(stores, records) as store:
        await check(store, records, aggregates.AggregateQuery(AllOf(()), tuple(periods), tuple(usage), as_of=LAST))


async def test_several_components_of_one_name_keep_their_own_scores(stores: StoreFactory) -> None:
    several = [
        scored("Cores", 2, ("a", 9.2), ("a", 7.0), ("b", 1e22)),
        scored("Cores", 3, ("a", 0.1)),
        scored("Cores", 5),
    ]
    others = [scored("Other", 7, ("a", 1 / 3)), scored("Other", 1, ("a", 9.2)), scored("Cores", 1, ("a", 9.2))]
    records = [
        job("several", *several),
        job("reversed", *reversed(several)),
        job("single", several[0], scored("GPU", 1)),
        job("others", *others),
        job("one other", others[0]),
        job("multi-valued", several[0], group_id="g", group="h"),
        job("nothing"),
    ]
    scores = ("a", "b", "c")
    usage = (
        aggregates.ComponentUsage("Cores", scores),
        aggregates.ComponentUsage("Other", scores),
        aggregates.ComponentUsage("GPU"),
    )
    by: list[tuple[aggregates.Dimension, ...]] = [
        (),
        (aggregates.ScoreValue("Cores", "a"),),
        (aggregates.ScoreValue("Other", "a"), aggregates.ComponentAmount("Cores")),
        (aggregates.ComponentAmount("Other"), aggregates.ScoreValue("Cores", "b")),
        (
            aggregates.ComponentPresent("Cores"),
            aggregates.ComponentPresent("Other"),
            aggregates.ComponentPresent("GPU"),
        ),
        (aggregates.MetaValue("group_id", "group"),),
    ]
    async with filled(stores, records) as store:
        for dimensions in by:
            await check(store, records, aggregates.AggregateQuery(by=dimensions, usage=usage))


async def test_the_first_of_two_scores_with_one_name_counts(stores: StoreFactory) -> None:
    records = [job("a", scored("Cores", 8, ("a", 9.2), ("a", 7.0)), scored("Other", 1, ("a", 2.0), ("a", 3.0)))]
    usage = (aggregates.ComponentUsage("Cores", ("a",)), aggregates.ComponentUsage("Other", ("a",)))
    async with filled(stores, records) as store:
        (group,) = (await store.aggregate(aggregates.AggregateQuery(usage=usage))).groups
    assert [set(each.scores["a"].by_value) for each in group.usage] == [{Decimal("9.2")}, {Decimal("2.0")}]


async def test_a_million_years_of_exabytes_in_microseconds(stores: StoreFactory) -> None:
    components = (scored("Memory", MAX_AMOUNT, ("a", 1e-7)), scored("Other", MAX_AMOUNT, ("a", 1e-7)))
    records = [Record(f"r{number}", FIRST, components, LAST) for number in range(100)]
    usage = (aggregates.ComponentUsage("Memory", ("a",)), aggregates.ComponentUsage("Other", ("a",)))
    span = (LAST - FIRST) // timedelta(microseconds=1)
    async with filled(stores, records) as store:
        (group,) = (await store.aggregate(aggregates.AggregateQuery(usage=usage, window=Window(FIRST, LAST)))).groups
        (seconds,) = (await store.aggregate(aggregates.AggregateQuery(usage=usage))).groups
    assert group.runtime == 100 * span
    assert seconds.runtime == 100 * (span // 1_000_000)
    for each in group.usage:
        assert each.sums == aggregates.AmountSums(100 * MAX_AMOUNT, 100 * MAX_AMOUNT * span)
        assert each.scores["a"].amount_runtime == Decimal(100 * MAX_AMOUNT * span).scaleb(-7, EXACT)


async def test_windows_that_follow_each_other_count_everything_once(stores: StoreFactory) -> None:
    lengths = [
        timedelta(),
        timedelta(microseconds=1),
        HOUR,
        timedelta(days=50),
        timedelta(days=400, microseconds=7),
        None,
    ]
    records = [job(f"r{at}", scored("Cores", 3), length=length) for at, length in enumerate(lengths)]
    as_of = EPOCH + timedelta(days=90, microseconds=11)
    ends = [EPOCH + timedelta(days=31 * month) for month in range(-1, 15)]
    usage = (aggregates.ComponentUsage("Cores"),)
    async with filled(stores, records) as store:
        windows = [aggregates.AggregateQuery(usage=usage, window=Window(*pair), as_of=as_of) for pair in pairwise(ends)]
        parts = [group for query in windows for group in (await store.aggregate(query)).groups]
    whole = sum((as_of - EPOCH if length is None else length for length in lengths), timedelta())
    assert sum(part.runtime for part in parts) == whole // timedelta(microseconds=1)
    assert sum(part.usage[0].sums.amount_runtime for part in parts) == 3 * (whole // timedelta(microseconds=1))


async def test_an_empty_window_has_no_records(stores: StoreFactory) -> None:
    """Neither jobs that run at its instant, nor those that start, stop, or take no time there."""
    at = EPOCH + HOUR
    records = [
        job("runs", scored("Cores", 1), length=3 * HOUR),
        job("stops", scored("Cores", 1), length=HOUR),
        Record("starts", at, (), at + HOUR, None),
        Record("no time", at, (), at, None),
        job("open", scored("Cores", 1), length=None),
    ]
    empty = aggregates.AggregateQuery(usage=(aggregates.ComponentUsage("Cores"),), window=Window(at, at), as_of=LAST)
    async with filled(stores, records) as store:
        assert aggregate_records(records, empty).groups == ()
        assert (await store.aggregate(empty)).groups == ()
        assert len((await store.aggregate(replace(empty, window=Window(at, at + SECOND)))).groups) == 1


async def test_an_answer_with_more_sums_than_allowed_is_refused(stores: StoreFactory) -> None:
    """Each group counts, and so does each component, each score, and each value of a score."""
    usage = (aggregates.ComponentUsage("Cores", ("a", "b")), aggregates.ComponentUsage("GPU"))
    records = [
        job(
            f"r{number}", scored("Cores", 1, ("a", 1.0 + number // 4)), user_id=f"u{number % 4}", other=f"u{number % 4}"
        )
        for number in range(12)
    ]
    async with filled(stores, records) as store:
        for key in ("user_id", "other"):
            query = aggregates.AggregateQuery(by=(aggregates.MetaValue(key),), usage=usage)
            # Four groups, each with two components, two scores, three values of one and none of the other.
            fits, small = -(-4 * (1 + 2 + 2 + 3 + 1) // aggregates.SUMS_PER_GROUP), 4 * (1 + 2 + 2)
            assert small > (fits - 1) * aggregates.SUMS_PER_GROUP - 16 > 0
            assert len((await store.aggregate(replace(query, most_groups=fits))).groups) == 4
            with pytest.raises(TooManyGroups, match="sums"):
                await store.aggregate(replace(query, most_groups=fits - 1))


async def test_changes_are_counted_as_they_are_now(stores: StoreFactory) -> None:
    usage = (aggregates.ComponentUsage("Cores", ("a",)),)
    query = aggregates.AggregateQuery(
        by=(aggregates.ComponentAmount("Cores"), aggregates.ScoreValue("Cores", "a")), usage=usage
    )
    started, other = job("a", scored("Cores", 8, ("a", 9.2)), length=None), job("b", scored("Cores", 8, ("a", 9.2)))
    async with filled(stores, [started, other]) as store:
        await store.stop(RecordUpdate("a", (), EPOCH + HOUR), PROVENANCE)
        changed = job("b", scored("Cores", 4, ("a", 1.5)), length=2 * HOUR)
        await store.replace(changed, PROVENANCE)
        await check(store, [job("a", *started.components), changed], query)


@pytest.mark.parametrize("per", [None, "Cores"])
async def test_amounts_exceed_the_runtime_however_many_components_they_are_of(
    stores: StoreFactory, per: str | None
) -> None:
    cores = {"one": [scored("Cores", 2)], "two": [scored("Cores", 1), scored("Cores", 1)]}
    records = [
        job(f"{cpu}-{name}", scored("TotalCPU", cpu), *components)
        for cpu in (5_401, 5_402, 10_803, 10_804)  # 1.5 x 3,601 s, for one core and for two
        for name, components in cores.items()
    ]
    by = (aggregates.ExceedsRuntime("TotalCPU", Decimal("1.5"), per),)
    async with filled(stores, records) as store:
        await check(store, records, aggregates.AggregateQuery(by=by))


async def test_more_groups_than_a_page_has_come_in_order(stores: StoreFactory) -> None:
    records = [job(f"r{number}", scored("Cores", 1), user_id=f"u{number % 1_500:04}") for number in range(3_000)]
    query = aggregates.AggregateQuery(
        by=(aggregates.MetaValue("user_id"),), usage=(aggregates.ComponentUsage("Cores"),)
    )
    async with filled(stores, records) as store:
        groups = (await StoredRecords(store).aggregate(query)).groups
    assert [group.key for group in groups] == [(f"u{number:04}",) for number in range(1_500)]
    assert {group.records for group in groups} == {2}


async def test_an_answer_with_more_groups_than_allowed_is_refused(stores: StoreFactory) -> None:
    records = [job(f"r{number}", scored("Cores", 1), user_id=f"u{number % 3}", other="x") for number in range(9)]
    async with filled(stores, records) as store:
        for key in ("user_id", "other"):  # roll-ups know one, the records the other
            by = (aggregates.MetaValue("user_id"), aggregates.MetaValue(key))
            allowed = aggregates.AggregateQuery(by=by, most_groups=3)
            assert len((await store.aggregate(allowed)).groups) == 3
            with pytest.raises(TooManyGroups, match="more than 2 groups"):
                await store.aggregate(replace(allowed, most_groups=2))


async def test_rows_behind_too_many_groups_are_not_read(stores: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [job(f"r{number}", scored("Cores", 1), user_id=f"u{number}") for number in range(2_500)]
    read, add = list[int](), Folding.add

    def noted(folding: Folding, rows: Sequence[Row]) -> None:
        read.append(len(rows))
        add(folding, rows)

    monkeypatch.setattr(Folding, "add", noted)
    query = aggregates.AggregateQuery(by=(aggregates.MetaValue("user_id"),))
    async with filled(stores, records) as store:
        with pytest.raises(TooManyGroups):
            await store.aggregate(replace(query, most_groups=2))
        assert read == [1_000]
        assert len((await store.aggregate(query)).groups) == 2_500  # by the same connection


async def test_an_empty_store_has_no_groups(store: RecordStore) -> None:
    usage = (aggregates.ComponentUsage("Cores", ("a",)), aggregates.ComponentUsage("Other"))
    assert (await store.aggregate(aggregates.AggregateQuery(usage=usage, as_of=EPOCH))).groups == ()


@pytest.mark.parametrize("text", ["with\0nul", "half \ud800 a character", "%s", "?"])
async def test_names_that_no_record_has_are_simply_not_there(stores: StoreFactory, text: str) -> None:
    records = [job("a", scored("Cores", 8, ("a", 9.2)), site_id="s")]
    by = (
        aggregates.MetaValue(text),
        aggregates.MetaValue("site_id", text),
        aggregates.MetaValue(text, "site_id"),
        aggregates.ComponentAmount(text),
        aggregates.ComponentPresent(text),
        aggregates.ExceedsRuntime(text, Decimal(1)),
        aggregates.ExceedsRuntime("Cores", Decimal(1), text),
    )
    usage = (aggregates.ComponentUsage(text, (text,)), aggregates.ComponentUsage("Cores", (text,)))
    async with filled(stores, records) as store:
        await check(store, records, aggregates.AggregateQuery(by=(*by, aggregates.ScoreValue(text, text)), usage=usage))


async def test_whoever_leaves_before_the_answer_disturbs_nobody(store: RecordStore) -> None:
    records = [job(f"r{number}", scored("Cores", 1), user_id=f"u{number:04}") for number in range(2_000)]
    await store.add_all(records, PROVENANCE, Duplicates.SAME_RUN, atomic=True)
    query = aggregates.AggregateQuery(
        by=(aggregates.MetaValue("user_id"), aggregates.ComponentAmount("Other")),
        usage=(aggregates.ComponentUsage("Other"),),
    )
    for _ in range(30):  # more often than there are connections and threads
        with anyio.move_on_after(0.001):
            await store.aggregate(query)
    await check(store, records, query)


async def test_an_answer_is_from_one_state_while_records_change(store: RecordStore) -> None:
    usage = (aggregates.ComponentUsage("Cores"), aggregates.ComponentUsage("Other"))
    await store.add(job("a", scored("Cores", 1), scored("Other", 1)), PROVENANCE, Duplicates.SAME_RUN)

    async def grow() -> None:
        for amount in range(2, 60):
            await store.replace(job("a", scored("Cores", amount), scored("Other", amount)), PROVENANCE)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(grow)
        while True:
            (sums,) = (await store.aggregate(aggregates.AggregateQuery(usage=usage))).groups
            cores, other = [each.sums.amount for each in sums.usage]
            assert cores == other
