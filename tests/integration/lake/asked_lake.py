"""A lake of two daemons in a small world, in which the queries of the store's contract find something."""

# pyiceberg's classes get their signatures while they are made; mypy checks the rest.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pyiceberg.types import StringType

from auditord.lake.queries import LakeReader
from auditord.lake.syncing import sync
from auditord.lake.table import LakeTable
from auditord.store import Duplicates, Provenance
from auditord.store.merging import place_of
from auditord.store.opening import open_store
from auditord_hookspecs import AggregateQuery, Component, Record, RecordQuery, Score
from auditord_hookspecs.query import Order, SortField
from auditord_hookspecs.wire import decode_record
from tests.contract.store.test_aggregates import CONDITIONS, QUERIES
from tests.contract.store.test_streaming import answer
from tests.integration.lake.killed import LOG, lake_in
from tests.summed_records import aggregate_records

EPOCH: Final = datetime(2024, 1, 1, tzinfo=UTC)


def job(number: int) -> Record:
    """A record."""
    day = (-40, -1, 0, 0, 1, 31, 400)[number % 7]
    start = EPOCH + timedelta(day, number % 5 - 2, (0, 0, 1, 999_999)[number % 4])
    stop = None if number % 6 == 0 else start + timedelta(days=(0, 1, 31)[number % 3], seconds=number % 4)
    scores = (Score("HEPSPEC06", (0.1, 9.2, 1 / 3)[number % 3]), Score("hepscore23", 9.2))[: number % 3]
    name = "CoreSeconds" if number % 5 == 0 else "Cores"
    components = [Component(name, (1, 8, 2**62)[number % 3], scores)]
    components += [Component(name, 8, scores[:1])] if number % 11 == 0 else []
    components += [Component("MemorySeconds", 4_001, ())] if number % 7 == 0 else []
    components += [Component("Other", number, ())] if number % 4 else []
    meta = {
        "site_id": ("xyX"[number % 3],),
        "user_id": (("x", "y", "знач")[number % 3],),
        "VO": ("x", "y")[: number % 3],
    }
    meta |= {"site": ("y",)} if number % 13 == 0 else {}
    return Record(f"{'abc'[number % 3]}{number}", start, tuple(components), stop, meta)


JOBS: Final = [job(number) for number in range(60)]
BY_DAEMON: Final[Mapping[str | None, Sequence[Record]]] = {None: [*JOBS[::2], *JOBS], "a": JOBS[::2], "b": JOBS}
"""The records that count for each; one of both daemons has half of the ids of the other as well."""


async def put(folder: Path, daemon: str, records: Sequence[Record], table: LakeTable) -> None:
    """Store records, and sync them."""
    async with open_store(f"sqlite:///{folder}/{daemon}.db", counted_keys=()) as store:
        await store.add_all(records, Provenance(EPOCH), Duplicates.SAME_RUN, atomic=True)
        await sync(store, table, daemon, LOG)


LISTINGS: Final = st.builds(
    RecordQuery, CONDITIONS, st.builds(Order, st.sampled_from(SortField), st.booleans()), st.none() | st.integers(0, 9)
)
"""Queries that find something here."""


async def listed(reader: LakeReader, query: RecordQuery) -> list[Record]:
    """The answer."""
    async with reader.stream(query) as pages:
        return [decode_record(document) async for page in pages for document in page]


def check_listed(found: Sequence[Record], query: RecordQuery, daemon: str | None) -> None:
    """That it is the plain evaluation's; the order of records of two daemons is open where it is the same."""
    if daemon is not None:
        assert found == answer(BY_DAEMON[daemon], query)
        return
    expected = answer(BY_DAEMON[None], replace(query, limit=None))
    places = [place_of(each, query.order) for each in found]
    assert places == [place_of(each, query.order) for each in expected][: query.limit]
    assert all(found.count(each) <= expected.count(each) for each in found)


def check_sums(readers: Mapping[str | None, LakeReader], lake: LakeTable, examples: int) -> None:
    """That sums are the plain evaluation's, of the newest snapshot."""

    @given(query=QUERIES, daemon=st.sampled_from([None, "a", "b"]))
    @settings(deadline=None, max_examples=examples)
    def check(query: AggregateQuery, daemon: str | None) -> None:
        found = asyncio.run(readers[daemon].aggregate(query))
        assert found.snapshot is not None
        assert found.snapshot.number == lake.facts().snapshot_id
        assert replace(found, snapshot=None) == aggregate_records(BY_DAEMON[daemon], query)

    check()


def check_listings(readers: Mapping[str | None, LakeReader], examples: int) -> None:
    """That listings are."""

    @given(query=LISTINGS, daemon=st.sampled_from([None, "a", "b"]))
    @settings(deadline=None, max_examples=examples)
    def check(query: RecordQuery, daemon: str | None) -> None:
        check_listed(asyncio.run(listed(readers[daemon], query)), query, daemon)

    check()


def asked_lake(folder: Path, table: LakeTable | None = None) -> LakeTable:
    """The lake of both, in a table of its own or in one that is given."""
    table = table or lake_in(folder / "lake")
    asyncio.run(put(folder, "a", BY_DAEMON["a"], table))
    with table.load() as opened, opened.update_schema() as update:
        update.add_column("ours", StringType())  # the files from now on have it
    asyncio.run(put(folder, "b", BY_DAEMON["b"], table))
    return table
