"""Answers in parts, by a stop time that very many records share."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
import pytest

from auditord.store import Duplicates, Provenance
from auditord.store.dialects import Sql
from auditord.store.opening import open_store
from auditord.store.postgres.dialect import find_tied_stop, in_parts
from auditord_hookspecs import Record, RecordQuery
from auditord_hookspecs.query import Order, SortField
from auditord_hookspecs.wire import decode_record

pytestmark = pytest.mark.anyio

BEGIN: Final = datetime(2026, 3, 1, tzinfo=UTC)
EARLY, TIED, LATE = (BEGIN + timedelta(hours=number) for number in (1, 2, 3))


def stopped(name: str, stop: datetime | None) -> Record:
    return Record(name, BEGIN, (), stop)


def ordered(limit: int, descending: bool) -> RecordQuery:  # noqa: FBT001 as the test has it
    return RecordQuery(order=Order(SortField.STOP, descending), limit=limit)


def asked(query: RecordQuery) -> Sql:
    tied = find_tied_stop(query)
    return Sql(f"SELECT {tied.sql}", tied.parameters)


async def answers(url: str, statement: Sql) -> Sequence[object]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(statement.sql, statement.parameters)
        return [value for (value,) in await cursor.fetchall()]


async def names(url: str, query: RecordQuery, stop: datetime) -> list[str]:
    found = await answers(url, in_parts(query, stop))
    return [decode_record(str(document).encode()).record_id for document in found]


@pytest.mark.parametrize("descending", [False, True])
async def test_a_shared_stop_time_is_found_and_any_other_gives_the_same_answer(
    postgres_url: str,
    descending: bool,  # noqa: FBT001 parametrised
) -> None:
    tied = [stopped(f"tied-{number:03}", TIED) for number in range(200)]
    others = [stopped("early", EARLY), stopped("late", LATE), stopped("open", None)]
    async with open_store(postgres_url, counted_keys=()) as store:
        await store.add_all([*tied, *others], Provenance(BEGIN), Duplicates.SAME_RUN, atomic=True)
    in_order = ["early", *[each.record_id for each in tied], "late", "open"]
    first, query = in_order[::-1][:3] if descending else in_order[:3], ordered(3, descending)
    assert await answers(postgres_url, asked(query)) == [TIED]
    assert await answers(postgres_url, asked(ordered(1, descending))) == [None]
    for stop in (BEGIN, EARLY, TIED, LATE):
        assert await names(postgres_url, query, stop) == first
