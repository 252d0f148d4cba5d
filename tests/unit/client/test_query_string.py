"""Queries in the wire contract's grammar, as auditord reads them and as AUDITOR does with all its quirks."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord.client import UnsupportedQuery, encode_query
from auditord.client.query_string import encode_for_api, record_path
from auditord.web.record_query import read_query
from auditord_hookspecs import Record, RecordQuery
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    ComponentCompares,
    Condition,
    IdEquals,
    ImplausibleCpuTime,
    IsOpen,
    MetaContains,
    MetaLacks,
    Order,
    RuntimeCompares,
    SortField,
    TimeCompares,
    TimeField,
)
from tests.fake_auditor import select

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
GT, GTE, LT, LTE, EQUALS = (Comparison(name) for name in ("gt", "gte", "lt", "lte", "equals"))
START, STOP = TimeField


def query(*conditions: Condition) -> str:
    return encode_query(RecordQuery(AllOf(conditions)))


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ((), ""),
        ((IdEquals("a b/c#1%2F"),), "record_id=a+b%2Fc%231%252F"),
        ((TimeCompares(START, GTE, NOON),), "start_time[gte]=2026-11-20T12%3A00%3A00Z"),
        ((MetaContains("site id/é[x]", "B & C"),), "meta[site+id%2F%C3%A9%5Bx%5D][c][0]=B+%26+C"),
        (
            (MetaContains("vo", "a"), MetaLacks("vo", "z"), MetaContains("vo", "b"), MetaContains("vo", "a")),
            "meta[vo][c][0]=a&meta[vo][c][1]=b&meta[vo][dnc][0]=z",
        ),
        ((RuntimeCompares(GT, 0), ComponentCompares("Co res", LT, 8)), "runtime[gt]=0&component[Co+res][lt]=8"),
        # What AUDITOR would drop in silence: bounds are merged, an equal time becomes two bounds.
        ((RuntimeCompares(GT, 5), RuntimeCompares(GTE, 6)), "runtime[gte]=6"),
        ((RuntimeCompares(GT, 5), RuntimeCompares(GTE, 5)), "runtime[gt]=5"),
        ((RuntimeCompares(LT, 5), RuntimeCompares(LTE, 5), RuntimeCompares(LTE, 9)), "runtime[lt]=5"),
        (
            (TimeCompares(STOP, EQUALS, NOON),),
            "&".join(f"stop_time[{op}]=2026-11-20T12%3A00%3A00Z" for op in ("gte", "lte")),
        ),
        (
            (ComponentCompares("a", EQUALS, 4), ComponentCompares("a", GT, 1)),
            "component[a][gt]=1&component[a][equals]=4",
        ),
    ],
)
def test_conditions(conditions: Sequence[Condition], text: str) -> None:
    assert query(*conditions) == text


def test_order_and_limit() -> None:
    assert encode_query(RecordQuery(order=Order(SortField.ID), limit=0)) == "sort_by[asc]=record_id&limit=0"
    assert encode_query(RecordQuery(order=Order(descending=True))) == "sort_by[desc]=stop_time"


def test_conditions_that_auditord_alone_has_words_for() -> None:
    both = RecordQuery(AllOf((IdEquals("a"), ImplausibleCpuTime(), IsOpen())))
    assert encode_for_api(both) == "record_id=a&sort_by[asc]=stop_time&open=true&implausible=true"


@pytest.mark.parametrize(
    "conditions",
    [
        (IsOpen(),),
        (ImplausibleCpuTime(),),
        (AllOf((AllOf((IsOpen(),)),)),),
        (IdEquals("a"), IdEquals("b")),
        (ComponentCompares("a", EQUALS, 1), ComponentCompares("a", EQUALS, 2)),
    ],
)
def test_what_the_grammar_has_no_words_for(conditions: Sequence[Condition]) -> None:
    with pytest.raises(UnsupportedQuery):
        query(*conditions)


def test_an_id_in_a_path() -> None:
    assert record_path("schedd#100.0/ü?%2F") == "/record/schedd%23100.0%2F%C3%BC%3F%252F"


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20).filter(
    lambda text: not text.isspace()
)
moments = st.integers(-3, 3).map(lambda hours: NOON + timedelta(hours=hours))
comparisons = st.sampled_from(Comparison)
plain_conditions = st.one_of(
    st.builds(TimeCompares, st.sampled_from(TimeField), comparisons, moments),
    st.builds(RuntimeCompares, comparisons, st.sampled_from([0, 3600, 7200, 10800])),
    st.builds(MetaContains, st.sampled_from(["site", "ключ [x]&="]), st.sampled_from(["a", "b +%2F"])),
    st.builds(MetaLacks, st.sampled_from(["site", "ключ [x]&="]), st.sampled_from(["a", "b +%2F"])),
)


def holds(condition: Condition, record: Record) -> bool:
    match condition:
        case TimeCompares(field, comparison, moment):
            value = record.start_time if field is START else record.stop_time
            return value is not None and compare(value.timestamp(), comparison, moment.timestamp())
        case RuntimeCompares(comparison, seconds):
            return record.runtime is not None and compare(record.runtime, comparison, seconds)
        case MetaContains(key, value):
            return value in (record.meta or {}).get(key, ())
        case MetaLacks(key, value):
            return key in (record.meta or {}) and value not in (record.meta or {})[key]
        case AllOf(conditions):
            return all(holds(inner, record) for inner in conditions)
        case _:
            raise NotImplementedError(condition)


def compare(value: float, comparison: Comparison, other: float) -> bool:
    return {
        GT: value > other,
        GTE: value >= other,
        LT: value < other,
        LTE: value <= other,
        EQUALS: value == other,
    }[comparison]


METAS: dict[str, dict[str, tuple[str, ...]] | None] = {
    "none": None,
    "a": {"site": ("a",)},
    "b": {"site": ("b +%2F", "c"), "ключ [x]&=": ("a",)},
}
RECORDS = [
    Record(f"{start}-{hours}-{name}", began, (), None if hours is None else began + timedelta(hours=hours), meta)
    for start in range(-3, 3)
    for began in [NOON + timedelta(hours=start)]
    for hours in (None, 0, 1, 2)
    for name, meta in METAS.items()
]


@given(st.lists(plain_conditions, max_size=6))
def test_auditor_and_auditord_understand_what_is_meant(conditions: Sequence[Condition]) -> None:
    text = query(*conditions)
    expected = {record.record_id for record in RECORDS if holds(AllOf(tuple(conditions)), record)}
    assert {record.record_id for record in select(RECORDS, text)} == expected
    read = read_query(text).where
    assert {record.record_id for record in RECORDS if holds(read, record)} == expected


@given(names, names, st.integers(0, 2**63 - 1))
def test_any_name_comes_through(key: str, value: str, amount: int) -> None:
    conditions = (IdEquals(value), MetaContains(key, value), ComponentCompares(key, LTE, amount))
    assert read_query(query(*conditions)).where == AllOf(conditions)
