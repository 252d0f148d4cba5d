"""Adding records up as they pass gives what a plain evaluation over all of them gives."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord.client import InvalidAnswer, UnsupportedQuery, aggregates
from auditord.client.aggregates import Adder, records_for
from auditord.client.query_string import aggregates_target, matches
from auditord.testing import EPOCH, make_record
from auditord.web.api.sums import read_sums_query
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    CalendarPeriod,
    CalendarUnit,
    Component,
    ComponentAmount,
    ComponentPresent,
    ComponentUsage,
    Dimension,
    ExceedsRuntime,
    HttpAnswer,
    MetaValue,
    Record,
    Score,
    ScoreValue,
    Window,
)
from auditord_hookspecs import query as queries
from tests.summed_records import aggregate_records

NAMES = st.sampled_from(["Cores", "Cores", "a:b|c%3A", "ядра", "x&y=z"])
TEXTS = st.sampled_from(["x", "a|b", "100%", "знач", "a+b c"])
SCORE_NAMES = st.sampled_from(["HEPscore23", "a|b:c"])


def shortly_after(seconds: int, micros: int) -> datetime:
    return EPOCH + timedelta(seconds=seconds, microseconds=micros)


TIMES = st.builds(
    shortly_after,
    st.sampled_from([-86_400 * 40, -1, 0, 0, 1, 3_600]),
    st.sampled_from([0, 0, 1, 999_999]),
)
SCORES = st.lists(st.builds(Score, SCORE_NAMES, st.sampled_from([0.0, 0.1, 9.2, 1e22])), max_size=2).map(tuple)
COMPONENTS = st.lists(st.builds(Component, NAMES, st.sampled_from([1, 8, 2**63 - 1]), SCORES), max_size=3).map(tuple)
METAS = st.none() | st.dictionaries(TEXTS, st.lists(TEXTS, max_size=2).map(tuple), max_size=3)
RECORDS = st.lists(
    st.builds(Record, st.text("abc", min_size=1, max_size=3), TIMES, COMPONENTS, st.none() | TIMES, METAS),
    max_size=20,
    unique_by=lambda each: each.record_id,
)
COMPARISONS = st.sampled_from([each for each in queries.Comparison if each is not queries.Comparison.EQUALS])
CONDITIONS: st.SearchStrategy[queries.Condition] = st.one_of(
    st.just(queries.AllOf()),
    st.just(queries.IsOpen()),
    st.builds(queries.TimeCompares, st.sampled_from(queries.TimeField), COMPARISONS, TIMES),
    st.builds(queries.RuntimeCompares, COMPARISONS, st.integers(0, 4)),
    st.builds(queries.MetaContains, TEXTS, TEXTS),
    st.builds(queries.MetaLacks, TEXTS, TEXTS),
    st.builds(queries.MetaContainsAny, TEXTS, st.lists(TEXTS, min_size=1, max_size=2, unique=True).map(tuple)),
    st.builds(queries.MetaAbsent, TEXTS),
    st.builds(queries.ComponentCompares, NAMES, COMPARISONS, st.sampled_from([1, 8])),
)
DIMENSIONS: st.SearchStrategy[Dimension] = st.one_of(
    st.lists(TEXTS, min_size=1, max_size=2, unique=True).map(lambda keys: MetaValue(*keys)),
    st.builds(ComponentAmount, NAMES),
    st.builds(ComponentPresent, NAMES),
    st.builds(ExceedsRuntime, NAMES, st.sampled_from([Decimal("0.25"), Decimal("1.5")]), st.none() | NAMES),
    st.builds(ScoreValue, NAMES, SCORE_NAMES),
    st.builds(
        CalendarPeriod,
        st.sampled_from(CalendarUnit),
        st.sampled_from(queries.TimeField),
        st.sampled_from(["UTC", "Europe/Berlin", "Etc/GMT+12"]),
    ),
)
USAGES = st.builds(ComponentUsage, NAMES, st.lists(SCORE_NAMES, max_size=2, unique=True).map(tuple))
QUERIES = st.builds(
    AggregateQuery,
    CONDITIONS,
    st.lists(DIMENSIONS, max_size=2, unique=True).map(tuple),
    st.lists(USAGES, max_size=2, unique_by=lambda each: each.component).map(tuple),
    st.none() | st.lists(TIMES, min_size=2, max_size=2).map(lambda ends: Window(*sorted(ends))),
    st.none() | TIMES,
)


@given(records=RECORDS, query=QUERIES)
def test_sums_are_those_of_a_plain_evaluation(records: Sequence[Record], query: AggregateQuery) -> None:
    assert added_up(records, query) == aggregate_records(records, query)


@given(records=RECORDS, query=QUERIES)
def test_what_auditor_is_asked_for_holds_every_record_that_counts(
    records: Sequence[Record], query: AggregateQuery
) -> None:
    sent = [record for record in records if matches(record, records_for(query).where)]
    assert added_up(sent, query) == aggregate_records(records, query)


def test_an_open_record_counts_in_days_of_utc() -> None:
    as_of = EPOCH.astimezone(datetime.strptime("+0530", "%z").tzinfo) + timedelta(hours=20)
    query = AggregateQuery(by=(CalendarPeriod(CalendarUnit.DAY),), as_of=as_of)
    (group,) = added_up([make_record(runtime=None)], query).groups
    assert group.key == (EPOCH.date(),)


@given(query=QUERIES)
def test_the_api_reads_what_the_client_asks(query: AggregateQuery) -> None:
    target = aggregates_target(query)
    read = read_sums_query(target.partition("?")[2]).query
    assert (read.by, read.usage, read.window, read.as_of) == (query.by, query.usage, query.window, query.as_of)
    assert flattened(read.where) == flattened(query.where)


def test_a_place_among_pages_cannot_be_asked_for() -> None:
    with pytest.raises(UnsupportedQuery):
        aggregates_target(AggregateQuery(queries.PlaceCompares(queries.Comparison.GT, EPOCH, "a")))


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"ticks_per_second":1}', b'{"ticks_per_second":1000000,"groups":[]}']
)
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidAnswer):
        aggregates.read_aggregates(HttpAnswer("GET /api/v1/aggregates", 200, {}, body), AggregateQuery())


def test_numbers_of_any_size_are_read_exactly() -> None:
    large = 2**90 + 1
    used = {"amount": large, "amount_runtime": 1, "scores": {"s": {"unscored": NOTHING, "by_value": [scored(large)]}}}
    group = {"key": {}, "records": 1, "runtime": large, "usage": {"C": used}, **STOPS}
    body = json.dumps({"ticks_per_second": 1, "groups": [group]}).encode()
    query = AggregateQuery(usage=(ComponentUsage("C", ("s",)),))
    (answer,) = aggregates.read_aggregates(HttpAnswer("GET …", 200, {}, body), query).groups
    assert (answer.runtime, answer.usage[0].sums.amount) == (large, large)
    assert answer.usage[0].scores["s"].amount == Decimal("0.1") * large
    assert answer.first_stop == datetime(2026, 1, 1, tzinfo=UTC)


NOTHING = {"amount": 0, "amount_runtime": 0}
STOPS = {"first_stop": "2026-01-01T00:00:00Z", "last_stop": "2026-01-01T00:00:00Z"}


def scored(amount: int) -> dict[str, object]:
    return {"value": "0.1", "amount": amount, "amount_runtime": 0}


def added_up(records: Sequence[Record], query: AggregateQuery) -> Aggregates:
    adder = Adder(query)
    for record in records:
        adder.add(record)
    return adder.answer()


def flattened(condition: queries.Condition) -> set[queries.Condition]:
    if isinstance(condition, queries.AllOf):
        return {inner for each in condition.conditions for inner in flattened(each)}
    return {condition}
