"""Work on a record store in PostgreSQL: its steps as statements on one connection, in autocommit mode at the beginning.

Many rows travel as one parameter, a JSON array; very many records through a binary COPY.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, contextmanager
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, LiteralString, NamedTuple, TypeAlias, TypeVar

import msgspec
from psycopg import errors

from auditord.database.postgres import Connection
from auditord.database.postgres.faults import is_passing, is_permanent
from auditord.errors import StoreUnavailable
from auditord.store.bulks import Bulk
from auditord.store.changes import add_bulk, change_each, outbox_row
from auditord.store.planning import Addition, Change, Outcome
from auditord.store.postgres.copied_rows import BEGIN, END, CopiedRows
from auditord.store.postgres.counting import QUERIES
from auditord.store.postgres.counting import changes as counts_of
from auditord.store.protocol import Verdict
from auditord.store.rollups.changes import changes_of_records
from auditord.store.rows import PendingRecord
from auditord.store.work import (
    Atomic,
    Count,
    ForEach,
    Overtaken,
    Records,
    Refused,
    RolledKeys,
    Rows,
    Statement,
    Step,
    Work,
    as_json,
)
from auditord_hookspecs.records import Meta

T = TypeVar("T")
_Parts: TypeAlias = AsyncGenerator[Sequence[PendingRecord], None]

_ATTEMPTS: Final = 10

_FEW: Final = 200
"""Records up to which one statement with a JSON parameter beats COPY and the transaction around it."""


class Keys(NamedTuple):
    """Meta keys whose values are counted, and keys that changes of the roll-ups tell apart."""

    counted: Sequence[str] = ()
    rolled: Sequence[str] = ()


_NO_KEYS: Final = Keys()


class _Row(msgspec.Struct, frozen=True, gc=False):
    """A record under the names of its columns; ``received_at`` is of this arrival."""

    start_time: datetime
    stop_time: datetime | None
    runtime: int | None
    content: int
    received_at: datetime
    cores: int | None
    memory: int | None
    gpu: int | None
    total_cpu: int | None
    source_id: int
    score_set: int | None
    more: bool | None
    record_id: str
    site: str | None
    user_group: str | None
    user_name: str | None
    meta: Meta | None
    document: str


async def run(connection: Connection, work: Work[T], keys: Keys = _NO_KEYS) -> T:
    """Do work.

    Args:
        connection: outside a transaction, for work that begins its own.
        work: of any kind.
        keys: what is kept up with the records, for work that changes these.
    """
    try:
        step = next(work)
        while True:
            try:
                answer = await _do(connection, step, keys)
            except Exception as error:  # noqa: BLE001 not swallowed: the work decides
                step = work.throw(error)
            else:
                step = work.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def record_rows(pending: Iterable[PendingRecord]) -> str:
    """Records as one parameter."""
    return as_json([_row(each) for each in pending])


async def _do(connection: Connection, step: Step, keys: Keys) -> Any:  # Any: of the step's type
    if not isinstance(step, Atomic):
        with _named_refusals():
            return await _execute(connection, step, keys)
    for _ in range(_ATTEMPTS):
        try:
            with _named_refusals():
                async with connection.transaction():
                    return await run(connection, step.make(), keys)
        except Overtaken:
            continue
    raise StoreUnavailable(f"Other transactions were faster {_ATTEMPTS} times in a row: try again.")


async def _execute(
    connection: Connection, step: Statement | ForEach | Records | Count | RolledKeys, keys: Keys
) -> Any:  # Any: the answer is of the step's type
    match step:
        case Statement(name, parameters):
            return await _rows(connection, QUERIES[name], parameters)
        case ForEach("add_to_rollups" as name, rows):
            return (await connection.execute(QUERIES[name], _columns(rows))).rowcount
        case ForEach(name, rows):
            return (await connection.execute(QUERIES[name], (as_json(rows),))).rowcount
        case Records(name, pending):
            return (await connection.execute(QUERIES[name], (record_rows(pending),))).rowcount
        case RolledKeys():
            return keys.rolled
        case Count(added, changed, removed):
            now = [*[each.record for each in added], *[after for _, after in changed]]
            before = [*[row.record for row, _ in changed], *[row.record for row in removed]]
            return await _rows(connection, QUERIES["note_changes"], {"changes": counts_of(keys.counted, now, before)})


async def make_changes(connection: Connection, changes: Sequence[Change] | Bulk, keys: Keys) -> Sequence[Outcome]:
    """The outcomes of changes, made in one transaction; see :func:`run`.

    Nearly all records are new: they are added at once, and a plan is made only where that does not do.
    """
    if isinstance(changes, Bulk):
        if changes.are_distinct and await _succeeds(_add_bulk(connection, changes, keys)):
            return [Verdict.ADDED] * len(changes)
        return await run(connection, add_bulk(changes), keys)
    new = {change.pending.row.record_id: change.pending for change in changes if isinstance(change, Addition)}
    if len(new) == len(changes) and await _succeeds(_add(connection, list(new.values()), keys)):
        return [Verdict.ADDED] * len(new)
    return await run(connection, change_each(changes), keys)


async def _succeeds(addition: Awaitable[None]) -> bool:
    """Add records that are all new; False, and nothing is done, if one of them is known or refused."""
    try:
        with _named_refusals():
            await addition
    except (errors.UniqueViolation, Overtaken, Refused):
        return False
    return True


# Always in one order, so that transactions which add the same records do not wait for each other in a circle.


async def _add_bulk(connection: Connection, bulk: Bulk, keys: Keys) -> None:
    if len(bulk) <= _FEW:
        return await _add(connection, bulk.pending(), keys)
    parts = bulk.parts(sorted(bulk.records, key=attrgetter("record_id")))
    return await _copy_all(connection, parts, bulk.pending, keys)


async def _add(connection: Connection, new: Sequence[PendingRecord], keys: Keys) -> None:
    ordered = sorted(new, key=attrgetter("row.record_id"))
    if len(new) > _FEW or any(each.forwarded for each in new):
        return await _copy_all(connection, _in_one_part(ordered), lambda: new, keys)
    parameters = {**_sums_of(ordered, keys), "records": record_rows(ordered)}
    await connection.execute(QUERIES["add_records"], parameters)
    return None


async def _in_one_part(pending: Sequence[PendingRecord]) -> AsyncGenerator[Sequence[PendingRecord], None]:
    yield pending


async def _copy_all(
    connection: Connection, parts: _Parts, new: Callable[[], Sequence[PendingRecord]], keys: Keys
) -> None:
    """Add records, what they change in the counts and in the roll-ups, and what senders are to forward of them."""
    async with connection.transaction(), aclosing(parts):
        await _copy(connection, parts, keys)
        if forwarded := [outbox_row("insert", each) for each in new() if each.forwarded]:
            await connection.execute(QUERIES["put_outbox"], (as_json(forwarded),))


async def _copy(connection: Connection, parts: _Parts, keys: Keys) -> None:
    """Copy records part by part: the database adds one while the next is made.

    Raises:
        Overtaken: one of them is in the archive, looked for after it was added, when it cannot move any more.
    """
    rows, added = CopiedRows(), list[PendingRecord]()
    async with connection.cursor() as cursor, cursor.copy(QUERIES["copy_records"]) as copy:
        await copy.write(BEGIN)
        async for part in parts:
            await copy.write(b"".join(rows.rows(part)))
            added += part
        await copy.write(END)
        # While the database is still busy with the rows.
        sums, ids = _sums_of(added, keys), [each.row.record_id for each in added]
    if await _rows(connection, QUERIES["note_new_records"], {**sums, "ids": ids}):
        raise Overtaken


def _sums_of(pending: Sequence[PendingRecord], keys: Keys) -> Mapping[str, object]:
    noted = changes_of_records(pending, keys.rolled).noted()
    return {
        "counts": counts_of(keys.counted, [each.record for each in pending]),
        "days": _array([each.day for each in noted]),
        "sizes": _array([each.size for each in noted]),
        "changes": [each.changes for each in noted],
        "keys": next((each.keys for each in noted), ""),
    }


async def _rows(connection: Connection, query: LiteralString, parameters: Mapping[str, object]) -> Rows:
    cursor = await connection.execute(query, parameters or None)
    has_rows = cursor.rownumber is not None  # a description says so too, but makes an object of each column
    return await cursor.fetchall() if has_rows else ()


@contextmanager
def _named_refusals() -> Generator[None, None, None]:
    """Inside, errors about values and about other transactions are raised as work knows them."""
    try:
        yield
    except (errors.Error, UnicodeError, OverflowError) as error:
        if is_passing(error):
            raise Overtaken from error
        if is_permanent(error):
            raise Refused(str(error).partition("\n")[0]) from error
        raise


def _row(pending: PendingRecord) -> _Row:
    record, row = pending.record, pending.row
    labels, amounts = row.labels, row.amounts
    return _Row(
        record.start_time, record.stop_time, record.runtime, row.content, pending.provenance.received_at,
        amounts.cores, amounts.memory, amounts.gpu, amounts.total_cpu, pending.source, pending.score_set, row.more,
        row.record_id, labels.site, labels.user_group, labels.user_name, record.meta, row.document,
    )  # fmt: skip


def _columns(rows: Sequence[msgspec.Struct]) -> Mapping[str, str | list[str]]:
    """Cells as an array for each column: there are many of them, and PostgreSQL reads these faster than JSON."""
    names = msgspec.structs.fields(type(rows[0]))
    columns = dict(
        zip([each.name for each in names], zip(*map(msgspec.structs.astuple, rows), strict=True), strict=True)
    )
    components = {name: number for number, name in enumerate(dict.fromkeys(columns["component"]), start=1)}
    columns["component"] = tuple([components[name] for name in columns["component"]])
    return {"names": list(components), **{name: _array(column) for name, column in columns.items()}}


def _array(numbers: Sequence[int | None]) -> str:
    """Numbers as PostgreSQL writes an array: a list of them takes psycopg longer."""
    return f"{{{as_json(numbers)[1:-1]}}}"
