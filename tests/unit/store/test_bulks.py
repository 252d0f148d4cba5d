"""Many records that are added together: their rows are what each is alone."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from auditord.store import Duplicates, Provenance
from auditord.store.rows import Bulk, PendingRecord, amounts_of, make_pending
from auditord_hookspecs import Component, InvalidRecord, Record, Score
from auditord_hookspecs.wire import decode_records, encode_record

pytestmark = pytest.mark.anyio

START = datetime(2024, 2, 3, 4, 5, 6, 7, tzinfo=UTC)
PROVENANCE = Provenance(START)
CORES = (Component("Cores", 8, (Score("x", 1),)), Component("Cores", 2, ()))
LABELS = {"b": ("1",), "a": ()}
UNALIKE = [
    Record("a", START, ()),
    Record("b\\", START, CORES, START + timedelta(hours=1), LABELS),
    Record("c", START, CORES),
    Record("d", START, (), START, LABELS),
    Record("e\n", START, (), START - timedelta(seconds=1.5), {"collector_type": ("x",), "site": ("x\u2028", "\n\\")}),
]
MANY = [
    msgspec.structs.replace(each, record_id=f"{each.record_id}{number}") for number in range(50) for each in UNALIKE
]


def bulk_of(records: list[Record]) -> Bulk:
    score_sets = [1 if each.components else None for each in records]
    amounts = [amounts_of(each.components) for each in records]
    return Bulk(records, amounts, score_sets, PROVENANCE, Duplicates.IGNORE, origin=3, atomic=True)


def alone(record: Record) -> PendingRecord:
    score_set = 1 if record.components else None
    return make_pending(record, PROVENANCE, Duplicates.IGNORE, origin=3, score_set=score_set)


def unshared(record: Record) -> Record:
    meta = None if record.meta is None else dict(record.meta)
    return msgspec.structs.replace(record, meta=meta, components=(*record.components,))


async def test_rows_are_what_each_is_alone() -> None:
    assert bulk_of(MANY).pending() == list(map(alone, MANY))
    assert bulk_of([]).pending() == []


async def test_it_makes_no_difference_what_records_share() -> None:
    apart = list(map(unshared, MANY))
    assert apart[1].meta is not apart[6].meta
    assert bulk_of(apart).pending() == bulk_of(MANY).pending()


async def test_records_of_a_body_share_what_is_the_same() -> None:
    found = decode_records(b"[" + b",".join(map(encode_record, MANY)) + b"]")
    assert found == MANY
    assert found[1].meta is found[6].meta
    assert found[1].components is found[6].components
    assert bulk_of(found).pending() == bulk_of(MANY).pending()


async def test_parts_come_in_the_order_that_is_asked_for_and_are_made_once() -> None:
    bulk, order = bulk_of(MANY), sorted(MANY, key=lambda each: each.record_id)
    parts = [part async for part in bulk.parts(order)]
    assert len(parts) > 1
    made = [pending for part in parts for pending in part]
    assert [pending.record for pending in made] == order
    assert {id(pending) for pending in made} == {id(pending) for pending in bulk.pending()}
    assert [pending.record for pending in bulk.pending()] == MANY


async def test_what_cannot_be_encoded_is_named_among_many() -> None:
    record = Record("r", START, ())
    msgspec.structs.force_setattr(record, "meta", {"a": ("\ud800",)})  # around the checks, as only a mistake could
    with pytest.raises(InvalidRecord, match="The record 'r' cannot be stored"):
        bulk_of([*MANY, record]).pending()


async def test_meta_that_a_module_uses_again_is_read_again_in_the_next_bulk() -> None:
    meta: dict[str, tuple[str, ...]] = {"user_id": ("alice",)}
    first = bulk_of([Record("a", START, CORES, meta=meta)]).pending()
    meta["user_id"] = ("bob",)
    (second,) = bulk_of([Record("b", START, CORES, meta=meta)]).pending()
    assert [each.row.labels.user_name for each in (*first, second)] == ["alice", "bob"]
    assert second == alone(second.record)


async def test_meta_of_any_length_is_the_same_in_the_next_bulk() -> None:
    for length in (1, 499, 500, 501, 10_000):
        records = [Record("a", START, CORES, meta={"a": ("x" * min(length, 200),) * (1 + length // 200)})]
        assert bulk_of(records).pending() == bulk_of(records).pending() == list(map(alone, records))
