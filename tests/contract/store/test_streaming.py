"""Answers to queries: order, filters, limits; compared with a plain evaluation in Python."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auditord.client.query_string import matches
from auditord.store import Duplicates, Provenance
from auditord.store.store import RecordStore
from auditord_hookspecs import Component, Record, RecordQuery
from auditord_hookspecs.query import (
    AllOf,
    AnyOf,
    Comparison,
    ComponentCompares,
    Condition,
    IdEquals,
    ImplausibleCpuTime,
    IsOpen,
    MetaAbsent,
    MetaContains,
    MetaContainsAny,
    MetaLacks,
    Order,
    PlaceCompares,
    RuntimeCompares,
    SortField,
    TimeCompares,
    TimeField,
)
from auditord_hookspecs.vocabulary import has_both_forms
from auditord_hookspecs.wire import decode_record, encode_record

pytestmark = pytest.mark.anyio

StoreFactory = Callable[[], AbstractAsyncContextManager[RecordStore]]

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
PROVENANCE = Provenance(EPOCH)


def in_order(records: Sequence[Record], order: Order) -> list[Record]:
    def key(record: Record) -> tuple[bool, object, bytes]:
        value = getattr(record, order.field.value)
        return value is None, value, record.record_id.encode()

    return sorted(records, key=key, reverse=order.descending)


def answer(records: Sequence[Record], query: RecordQuery) -> list[Record]:
    return in_order([each for each in records if matches(each, query.where)], query.order)[: query.limit]


async def ask(store: RecordStore, query: RecordQuery) -> list[Record]:
    async with store.stream(query) as pages:
        return [decode_record(document) async for page in pages for document in page]


@asynccontextmanager
async def filled(stores: StoreFactory, records: Sequence[Record]) -> AsyncGenerator[RecordStore, None]:
    async with stores() as store:
        await store.add_all(records, PROVENANCE, Duplicates.SAME_RUN, atomic=True)
        yield store


def shortly_after(seconds: int, micros: int) -> datetime:
    return EPOCH + timedelta(seconds=seconds, microseconds=micros)


# Small worlds, so that conditions meet records; the texts are the ones that SQL, JSON and collations stumble over.
KEYS = st.sampled_from(["site_id", "site", "group_id", "user_id", "a.b[0]", 'quo"te', "back\\slash", "ключ", "$"])
VALUES = st.sampled_from(
    ["x", "y", "X", "", "%", "_", 'quo"te', "back\\", "\\u005c", "знач", "é", "e\u0301", "null", "[]", "a\nb"]
)
TEXTS = VALUES.filter(bool).filter(lambda text: not text.isspace())
NAMES = st.sampled_from(
    ["Cores", "CoreSeconds", "TotalCPU", "TotalCPU", "Memory", "GPU", "Other", "ядра", 'quo"te', "back\\slash"]
)
AMOUNTS = st.sampled_from([0, 1, 8, 2**31, 2**53 + 1, 2**63 - 2, 2**63 - 1])
TIMES = st.builds(
    shortly_after,
    st.integers(-3, 3),
    st.sampled_from([0, 0, 1, 500_000, 999_999]),
)
METAS = st.none() | st.dictionaries(KEYS, st.lists(TEXTS, max_size=3).map(tuple), max_size=4)
COMPONENTS = (
    st.lists(st.builds(Component, NAMES, AMOUNTS, st.just(())), max_size=3)
    .map(tuple)
    .filter(lambda components: has_both_forms(each.name for each in components) is None)
)
IDS = st.text("abcABCé_/%\\😀", min_size=1, max_size=3)
RECORDS = st.lists(
    st.builds(Record, IDS, TIMES, COMPONENTS, st.none() | TIMES, METAS),
    max_size=25,
    unique_by=lambda each: each.record_id,
)
COMPARISONS = st.sampled_from(Comparison)
LEAVES: st.SearchStrategy[Condition] = st.one_of(
    st.builds(IdEquals, IDS),
    st.just(IsOpen()),
    st.just(ImplausibleCpuTime()),
    st.builds(TimeCompares, st.sampled_from(TimeField), COMPARISONS, TIMES),
    st.builds(RuntimeCompares, COMPARISONS, st.integers(-4, 4)),
    st.builds(MetaContains, KEYS, TEXTS),
    st.builds(MetaLacks, KEYS, TEXTS),
    st.builds(MetaContainsAny, KEYS, st.lists(TEXTS, max_size=3).map(tuple)),
    st.builds(MetaAbsent, KEYS),
    st.builds(PlaceCompares, COMPARISONS, TIMES, IDS),
    st.builds(ComponentCompares, NAMES, COMPARISONS, AMOUNTS),
)
NESTED = LEAVES | st.builds(AllOf, st.lists(LEAVES, max_size=3).map(tuple))
CONDITIONS = NESTED | st.builds(AnyOf, st.lists(NESTED, max_size=3).map(tuple))
QUERIES = st.builds(
    RecordQuery,
    CONDITIONS,
    st.builds(Order, st.sampled_from(SortField), st.booleans()),
    st.none() | st.integers(0, 5),
)


@given(records=RECORDS, queries=st.lists(QUERIES, min_size=5, max_size=25))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_answers_equal_a_plain_evaluation(
    store_factory: Callable[[Path], StoreFactory], records: list[Record], queries: list[RecordQuery]
) -> None:
    with TemporaryDirectory() as folder:
        async with filled(store_factory(Path(folder)), records) as store:
            for query in queries:
                assert await ask(store, query) == answer(records, query)


# What the narrow columns of a store cannot tell: several values, none, the other key, components of one name.
CORNERS: list[tuple[dict[str, tuple[str, ...]] | None, list[int]]] = [
    (None, []),
    ({}, [8]),
    ({"site_id": ("x",)}, [8, 1]),
    ({"site_id": ("y", "x")}, [1, 8]),
    ({"site_id": ("y", "z")}, [4, 4]),
    ({"site_id": ()}, [0]),
    ({"site": ("x",)}, [2**63 - 1]),
    ({"site_id": ("y",), "site": ("x",)}, [2**63 - 1, 2**63 - 1]),
    ({"user_id": ("x",)}, []),
    ({"user": ("x",), "group_id": ("x", "y")}, []),
    ({"other": ("x", "y")}, []),
    ({"other": ("y",)}, []),
]


@pytest.mark.parametrize("key", ["site_id", "site", "group_id", "group", "user_id", "user", "other"])
async def test_filters_on_meta_in_every_corner(stores: StoreFactory, key: str) -> None:
    records = [Record(f"{number:02}", EPOCH, (), meta=meta) for number, (meta, _) in enumerate(CORNERS)]
    async with filled(stores, records) as store:
        for value in ("x", "y", "z", "X"):
            for condition in (MetaContains(key, value), MetaLacks(key, value)):
                query = RecordQuery(condition)
                assert await ask(store, query) == answer(records, query)


@pytest.mark.parametrize("name", ["Cores", "Memory", "GPU", "TotalCPU", "Other"])
async def test_filters_on_components_in_every_corner(stores: StoreFactory, name: str) -> None:
    records = [
        Record(f"{number:02}", EPOCH, tuple(Component(name, amount, ()) for amount in amounts))
        for number, (_, amounts) in enumerate(CORNERS)
    ]
    async with filled(stores, records) as store:
        for amount in (0, 1, 4, 5, 8, 9, 2**63 - 1):
            for comparison in Comparison:
                query = RecordQuery(ComponentCompares(name, comparison, amount))
                assert await ask(store, query) == answer(records, query)


MANY = [
    Record(
        f"{number:05}",
        EPOCH + timedelta(seconds=number * 7919 % 1000),
        (Component("Cores", number % 7, ()),),
        None if number % 10 == 0 else EPOCH + timedelta(seconds=number * 104_729 % 5000),
        {"site_id": (f"site-{number % 3}",), "padding": ("x" * 250, "y" * 250)},
    )
    for number in range(2_000)
]


@pytest.mark.parametrize("field", SortField)
@pytest.mark.parametrize("descending", [False, True])
async def test_many_pages_in_every_order(stores: StoreFactory, field: SortField, descending: bool) -> None:  # noqa: FBT001 parametrised
    query = RecordQuery(MetaContains("site_id", "site-1"), Order(field, descending))
    async with filled(stores, MANY) as store, store.stream(query) as pages:
        sizes = [len(page) async for page in pages]
        assert len(sizes) > 1
        assert await ask(store, query) == answer(MANY, query)


async def test_pages_are_bounded_by_bytes(stores: StoreFactory) -> None:
    large = [Record(f"{number}", EPOCH, (), None, {"k": ("v" * 250,) * 400}) for number in range(300)]
    async with filled(stores, large) as store, store.stream(RecordQuery()) as pages:
        sizes = [sum(map(len, page)) async for page in pages]
    assert sum(sizes) == sum(len(encode_record(record)) for record in large)
    assert max(sizes) < sum(sizes) / 3


async def test_an_answer_is_as_of_its_beginning(stores: StoreFactory) -> None:
    async with filled(stores, MANY) as store, store.stream(RecordQuery()) as pages:
        first = await anext(pages)
        closed = [Record(each.record_id, each.start_time, (), EPOCH) for each in MANY if each.stop_time is None]
        await store.add_all(closed, PROVENANCE, Duplicates.SAME_RUN, atomic=True)
        later = [document async for page in pages for document in page]
    assert [decode_record(document) for document in [*first, *later]] == in_order(MANY, Order())


async def test_an_answer_may_be_left_early(stores: StoreFactory) -> None:
    async with filled(stores, MANY) as store:
        for _ in range(20):
            async with store.stream(RecordQuery()) as pages:
                await anext(pages)
        assert len(await ask(store, RecordQuery())) == len(MANY)


async def test_no_record_matches(store: RecordStore) -> None:
    async with store.stream(RecordQuery()) as pages:
        assert [page async for page in pages] == []


async def test_a_limit_of_none_at_all(stores: StoreFactory) -> None:
    async with filled(stores, MANY[:3]) as store:
        assert await ask(store, RecordQuery(limit=0)) == []


@pytest.mark.parametrize("descending", [False, True])
async def test_of_many_that_stopped_at_one_moment_the_ids_decide(store: RecordStore, descending: bool) -> None:  # noqa: FBT001 parametrised
    moments = {"early": 1, **{f"tied-{number:03}": 2 for number in range(400)}, "late": 3}
    records = [
        Record(name, EPOCH, (Component("Cores", len(name) % 3, ()),), shortly_after(second, 0))
        for name, second in moments.items()
    ]
    await store.add_all([*records, Record("open", EPOCH, ())], PROVENANCE, Duplicates.SAME_RUN, atomic=True)
    everything = [*records, Record("open", EPOCH, ())]
    for where in (AllOf(), ComponentCompares("Cores", Comparison.GTE, 2)):
        for limit in range(1, 8):
            query = RecordQuery(where, Order(SortField.STOP, descending), limit)
            assert await ask(store, query) == answer(everything, query)


@pytest.mark.parametrize("limit", [None, 1, 3])
@pytest.mark.parametrize("field", list(SortField))
async def test_users_with_few_records_and_with_many_are_listed_alike(
    stores: StoreFactory, field: SortField, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        Record(f"job-{number}", shortly_after(number % 5, 0), (), shortly_after(9, number), {"user_id": (name,)})
        for number, name in enumerate(["few", "many", "many", "many"] * 5)
    ]
    more = Record("job-more", EPOCH, (), None, {"user_id": ("many", "few")})
    wanted: list[Condition] = [MetaContains("user_id", "few"), MetaContainsAny("user_id", ("nobody", "many"))]
    async with filled(stores, [*records, more]) as store:
        await store.rollups.fold()
        for most in (10_000, 6, -1):
            monkeypatch.setattr("auditord.store.rollups.scope.FEW_TO_SORT", most)
            for where in wanted:
                query = RecordQuery(where, Order(field, descending=True), limit)
                assert await ask(store, query) == answer([*records, more], query)
