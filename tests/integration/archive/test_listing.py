"""Lists of records over the archive and the record store are those of all records, in the same order."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

import msgspec
import pytest

from auditord.archive import reading
from auditord.archive.archiver import Archiver
from auditord.archive.table import ArchiveTable
from auditord.client.query_string import matches
from auditord.errors import StoreUnavailable
from auditord.store import Duplicates, Provenance, RecordStore
from auditord.store.merging import place_of
from auditord.web.api.records import read_listing
from auditord.web.requests import RestrictedRecords
from auditord_hookspecs import Component, Record, RecordQuery, RecordUpdate
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    Condition,
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
from auditord_hookspecs.wire import decode_record, encode_record
from tests.integration.archive.conftest import Stores

pytestmark = pytest.mark.anyio

START = datetime(2024, 1, 15, tzinfo=UTC)
DAY = timedelta(days=1)
BEFORE = START + 40 * DAY
SENT = Provenance(START + 400 * DAY, "task:slurm")
WHERE: tuple[Condition, ...] = (
    AllOf(),
    MetaContains("site_id", "S1"),
    MetaContainsAny("user_id", ("é", "b")),
    MetaLacks("user_id", "b"),
    MetaAbsent("site_id"),
    IsOpen(),
    TimeCompares(TimeField.STOP, Comparison.LT, BEFORE + 5 * DAY),
    TimeCompares(TimeField.START, Comparison.GTE, START + 20 * DAY),
    RuntimeCompares(Comparison.GT, 86_400),
    PlaceCompares(Comparison.GT, START + 21 * DAY, "job-21"),
    PlaceCompares(Comparison.LT, START + 21 * DAY, "job-21b"),
)
ORDERS = tuple(Order(field, descending) for field, descending in product(SortField, (False, True)))


def job(number: int, suffix: str = "") -> Record:
    """Starts follow each other, stops and runtimes do not; two records start at each instant."""
    start = START + number * DAY
    stop = None if number % 17 == 16 else start + timedelta(hours=(number * 7) % 90)
    meta: dict[str, tuple[str, ...]] = {"site_id": (f"S{number % 3}",), "user_id": ("é" if number % 2 else "b",)}
    record_id = f"job-{number}{suffix}" if number % 5 else f"ü/{number}{suffix}"
    return Record(record_id, start, (Component("Cores", number, ()),), stop, meta if number % 4 else None)


RECORDS = [job(number, suffix) for number in range(60) for suffix in ("", "b")]


async def fill(store: RecordStore, archiver: Archiver) -> Sequence[Record]:
    """Three commits of the archive, with a row that counts no more, and what is in the store alone."""
    early, late = RECORDS[::3], [each for number, each in enumerate(RECORDS) if number % 3]
    await store.add_all(early, SENT, Duplicates.SAME_RUN, atomic=True)
    await archiver.run(START + 20 * DAY)
    await archiver.run(BEFORE)
    await store.add_all(late, SENT, Duplicates.SAME_RUN, atomic=True)
    await archiver.run(BEFORE)
    changed = msgspec.structs.replace(job(6), stop_time=BEFORE + DAY)
    await store.stop(RecordUpdate(changed.record_id, (), BEFORE + DAY), SENT)
    assert (await store.archive_state()).records > 60
    return [changed if each.record_id == changed.record_id else each for each in RECORDS]


async def listed(store: RecordStore | RestrictedRecords, query: RecordQuery) -> Sequence[bytes]:
    async with store.stream(query) as pages:
        return [document async for page in pages for document in page]


def expected(records: Sequence[Record], query: RecordQuery) -> Sequence[bytes]:
    order = query.order
    found = sorted(
        [each for each in records if matches(each, query.where)],
        key=lambda each: place_of(each, order),
        reverse=order.descending,
    )
    return [encode_record(each) for each in found[: query.limit]]


async def test_every_question_is_answered_as_over_all_records(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST", 30)  # an answer takes several pages of the archive
    async with stores(tmp_path) as (store, table):
        records = await fill(store, Archiver(store, table))
        for number, where in enumerate(WHERE + WHERE):  # twice, in different orders
            query = RecordQuery(where, ORDERS[number % len(ORDERS)], (None, 10, 0)[number // 2 % 3], archived=True)
            assert await listed(store, query) == expected(records, query), query


async def test_pages_by_cursor_cross_the_border_without_a_gap(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST", 12)
    async with stores(tmp_path) as (store, table):
        records = await fill(store, Archiver(store, table))
        for direction in ("asc", "desc"):
            raw, found = (
                urlencode({"include": "archive", "limit": 9, f"sort_by[{direction}]": "start_time"}),
                list[bytes](),
            )
            while raw:
                listing = read_listing(raw, "")
                page = await listed(store, listing.query)
                found += page[: listing.page]
                raw = listing.next(decode_record(found[-1])) if len(page) > listing.page else ""
            order = Order(SortField.START, descending=direction == "desc")
            assert found == expected(records, RecordQuery(order=order))


async def test_a_restriction_holds_in_the_archive_as_well(stores: Stores, tmp_path: Path) -> None:
    async with stores(tmp_path) as (store, table):
        records = await fill(store, Archiver(store, table))
        restriction = MetaContains("site_id", "S2")
        found = await listed(RestrictedRecords(store, restriction), RecordQuery(archived=True))
        assert found == expected(records, RecordQuery(restriction))


async def test_an_answer_is_as_of_the_moment_when_it_began(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST", 5)
    async with stores(tmp_path) as (store, table):
        records = await fill(store, Archiver(store, table))
        async with store.stream(RecordQuery(archived=True)) as pages:
            await store.recall([each.record_id for each in records])
            await store.add(job(100), SENT, Duplicates.SAME_RUN)
            found = [document async for page in pages for document in page]
        assert found == expected(records, RecordQuery())


async def test_an_answer_that_is_left_early_leaves_the_store_usable(stores: Stores, tmp_path: Path) -> None:
    async with stores(tmp_path) as (store, table):
        records = await fill(store, Archiver(store, table))
        for _ in range(20):
            async with store.stream(RecordQuery(archived=True)) as pages:
                assert await anext(pages)
        assert len(await listed(store, RecordQuery(archived=True))) == len(records)


async def test_without_the_archive_it_is_an_error_and_the_store_alone_is_not(stores: Stores, tmp_path: Path) -> None:
    async with stores(tmp_path) as (store, table):
        await fill(store, Archiver(store, table))
        store.archive = None
        with pytest.raises(StoreUnavailable, match="are in the archive"):
            await listed(store, RecordQuery(archived=True))
        assert 0 < len(await listed(store, RecordQuery())) < len(RECORDS)


def remove_files(table: ArchiveTable, snapshot_id: int) -> None:
    for file in table.files(snapshot_id):
        Path(unquote(urlsplit(file.path).path)).unlink()


async def test_a_file_that_is_gone_by_the_time_it_is_read_is_an_outage(stores: Stores, tmp_path: Path) -> None:
    """As where an archive run forgets, meanwhile, the snapshot that is read."""
    async with stores(tmp_path) as (store, table):
        await fill(store, Archiver(store, table))
        remove_files(table, (await store.archive_state()).snapshot_id)
        with pytest.raises(StoreUnavailable, match="is not available"):
            await listed(store, RecordQuery(archived=True))


async def test_a_first_page_opens_few_files(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []

    def counting(*args: Any) -> Iterator[Any]:
        for bound, copies in records_by(*args):
            opened.append(bound)
            yield bound, copies

    records_by = ArchiveTable.records_by
    async with stores(tmp_path) as (store, table):
        await fill(store, Archiver(store, table))
        files = len(table.files((await store.archive_state()).snapshot_id))
        monkeypatch.setattr(ArchiveTable, "records_by", counting)
        await listed(store, RecordQuery(limit=1, archived=True))
        assert 0 < len(opened) < files / 2
