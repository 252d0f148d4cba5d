"""The meaning of an aggregate's words, on records that are looked at one by one; and that products are exact."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from auditord.testing import make_record
from auditord_hookspecs import Component, Record, Score, Window, aggregates
from auditord_hookspecs.query import IsOpen, TimeField
from tests.summed_records import aggregate_records

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
FEBRUARY = datetime(2026, 2, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
HEP = "hepscore23"


def scored(record_id: str, cores: int, score: float | None) -> Record:
    scores = () if score is None else (Score(HEP, score),)
    return Record(record_id, JANUARY, (Component("Cores", cores, scores),), JANUARY + HOUR)


def only(records: list[Record], query: aggregates.AggregateQuery) -> tuple[int, int]:
    (group,) = aggregate_records(records, query).groups
    return group.records, group.runtime


def test_products_with_scores_are_exact_and_leave_out_what_has_none() -> None:
    records = [scored("a", 8, 0.1), scored("b", 1, 0.2), scored("c", 2, None), scored("d", 1, 0.1)]
    (group,) = aggregate_records(
        records, aggregates.AggregateQuery(usage=(aggregates.ComponentUsage("Cores", (HEP,)),))
    ).groups
    (usage,) = group.usage
    assert usage.sums == aggregates.AmountSums(12, 12 * 3600)
    assert usage.scores[HEP].amount_runtime == Decimal("1.1") * 3600
    assert usage.scores[HEP].amount == Decimal("1.1")
    assert usage.scores[HEP].unscored == aggregates.AmountSums(2, 2 * 3600)
    assert usage.scores[HEP].by_value[Decimal("0.1")] == aggregates.AmountSums(9, 9 * 3600)


def test_no_digit_is_lost_between_the_largest_and_the_smallest_score() -> None:
    largest, smallest = Decimal("1.7976931348623157e308"), Decimal("5e-324")
    sums = aggregates.AmountSums(0, 2**128)
    total = aggregates.ScoreSums({largest: sums, smallest: aggregates.AmountSums(0, 1)}).amount_runtime
    assert int(total) == 17976931348623157 * 10**292 * 2**128
    assert str(total).endswith("00000005")


def test_a_month_holds_what_overlaps_it_and_months_tile() -> None:
    over = make_record("over", start=FEBRUARY - HOUR, runtime=3 * HOUR)
    instant = make_record("instant", start=FEBRUARY, runtime=timedelta())
    before = make_record("before", start=FEBRUARY - HOUR, runtime=HOUR)
    records = [over, instant, before]
    january = aggregates.AggregateQuery(window=Window(JANUARY, FEBRUARY))
    february = aggregates.AggregateQuery(window=Window(FEBRUARY, FEBRUARY + timedelta(days=28)))
    hour = 3_600_000_000
    assert january.ticks_per_second == 1_000_000
    assert only(records, january) == (2, 2 * hour)
    assert only(records, february) == (2, 2 * hour)


def test_open_records_count_only_up_to_an_instant_and_reversed_ones_never() -> None:
    running = make_record("open", start=JANUARY, runtime=None)
    reversed_ = make_record("reversed", start=JANUARY, runtime=-SECOND / 2)
    records = [running, reversed_]
    assert aggregate_records(records, aggregates.AggregateQuery()).groups == ()
    assert aggregate_records(records, aggregates.AggregateQuery(as_of=JANUARY - SECOND)).groups == ()
    assert only(records, aggregates.AggregateQuery(as_of=JANUARY + HOUR)) == (1, 3600)
    window = Window(JANUARY + SECOND, FEBRUARY)
    assert only(records, aggregates.AggregateQuery(IsOpen(), window=window, as_of=JANUARY + 2 * SECOND)) == (
        1,
        1_000_000,
    )


def test_keys_are_first_values_in_order_with_none_before_all() -> None:
    both = make_record("a", cores=8, site="old", site_id="new")
    older = make_record("b", cores=8, site="old")
    nothing = make_record("c")
    empty = Record("d", JANUARY, (), JANUARY, {"site_id": (), "site": ("unseen",)})
    query = aggregates.AggregateQuery(by=(aggregates.MetaValue("site_id", "site"), aggregates.ComponentAmount("Cores")))
    keys = [group.key for group in aggregate_records([both, older, nothing, empty], query).groups]
    assert keys == [(None, None), (None, 1), ("new", 8), ("old", 8)]


def test_amounts_of_one_name_are_summed_and_the_first_score_is_the_key() -> None:
    twice = (Component("Cores", 2, ()), Component("Cores", 3, (Score(HEP, 9.2),)))
    query = aggregates.AggregateQuery(
        by=(aggregates.ComponentAmount("Cores"), aggregates.ScoreValue("Cores", HEP)),
        usage=(aggregates.ComponentUsage("Cores", (HEP,)),),
    )
    (group,) = aggregate_records([Record("a", JANUARY, twice, JANUARY + SECOND)], query).groups
    assert group.key == (5, None)
    assert group.usage[0].scores[HEP].by_value == {
        None: aggregates.AmountSums(2, 2),
        Decimal("9.2"): aggregates.AmountSums(3, 3),
    }


def test_periods_are_those_of_utc() -> None:
    by = tuple(aggregates.CalendarPeriod(unit, TimeField.START) for unit in aggregates.CalendarUnit)
    record = make_record("a", start=datetime.fromisoformat("2026-02-17T00:30:00+01:00"))
    (group,) = aggregate_records([record], aggregates.AggregateQuery(by=by)).groups
    assert group.key == (
        date(2026, 2, 16), date(2026, 2, 16), date(2026, 2, 1), date(2026, 1, 1), date(2026, 1, 1)
    )  # fmt: skip


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        aggregates.AggregateQuery(as_of=datetime(2026, 1, 1))  # noqa: DTZ001 that is what is refused
    with pytest.raises(ValueError, match="before it begins"):
        aggregates.AggregateQuery(window=Window(FEBRUARY, JANUARY))
    with pytest.raises(ValueError, match="needs a key"):
        aggregates.MetaValue()
