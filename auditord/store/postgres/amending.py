"""Changing single records on purpose; see :mod:`auditord.store.amendments`.

Each row is locked and compared with the version that the request names; other daemons that change the same records
at the same time look again.
"""

from collections.abc import Mapping, Sequence

from auditord.database.postgres import Connection
from auditord.store.amendments import Action, Amended, Version
from auditord.store.ledger import Forwarded
from auditord.store.postgres import outbox
from auditord.store.postgres.changes import again
from auditord.store.postgres.counting import QUERIES as COUNTING
from auditord.store.postgres.counting import CountChanges
from auditord.store.postgres.rows import as_json, make_row
from auditord.store.postgres.sources import QUERIES, Numbers, Sources
from auditord.store.postgres.versions import Kept, keep_versions
from auditord.store.prepared import Prepared
from auditord.store.protocol import Provenance
from auditord.store.rows import PendingRecord
from auditord_hookspecs.wire import decode_record


async def amend(
    connection: Connection,
    prepared: Sequence[Prepared],
    provenance: Provenance,
    sources: Sources,
    counted_keys: Sequence[str],
) -> Sequence[Amended]:
    """Make the changes that still fit what is there, in one transaction."""
    pending_records = [each.pending for each in prepared if each.pending is not None]
    numbers = await sources.learn(connection, [provenance], (pending.scores for pending in pending_records))

    async def work() -> Sequence[Amended]:
        async with connection.transaction():
            found = await _locked(connection, prepared)
            verdicts = [each.classify(found.get(each.record_id)) for each in prepared]
            done = [each for each, verdict in zip(prepared, verdicts, strict=True) if verdict is Amended.DONE]
            if done:
                await _keep_versions(connection, done, provenance, numbers)
                await _write(connection, done, numbers, counted_keys)
            return verdicts

    return await again(work)


async def history(connection: Connection, record_id: str) -> Sequence[Version]:
    """The former versions of a record, the oldest first."""
    rows = await (await connection.execute(QUERIES["list_versions"], (record_id,))).fetchall()
    return [
        Version(number, Action(action), reason, changed_at, changed_by, document.encode(), received, updated, principal)
        for number, action, reason, changed_at, changed_by, document, received, updated, principal in rows
    ]


async def _locked(connection: Connection, prepared: Sequence[Prepared]) -> Mapping[str, bytes]:
    ids = as_json(sorted(each.record_id for each in prepared))
    rows = await (await connection.execute(QUERIES["lock_documents"], (ids,))).fetchall()
    return {record_id: document.encode() for record_id, document in rows}


async def _keep_versions(
    connection: Connection, done: Sequence[Prepared], provenance: Provenance, numbers: Numbers
) -> None:
    by = numbers.source(provenance)
    kept = [
        Kept(each.record_id, each.amendment.action.value, each.amendment.reason, provenance.received_at, by)
        for each in done
    ]
    await keep_versions(connection, kept)


async def _write(
    connection: Connection, done: Sequence[Prepared], numbers: Numbers, counted_keys: Sequence[str]
) -> None:
    pending_records = [each.pending for each in done if each.pending is not None]
    ids = as_json([each.record_id for each in done])
    await connection.execute(QUERIES["settle_differences"], (ids,))
    if pending_records:
        await connection.execute(
            QUERIES["overwrite_records"], (as_json([make_row(pending, numbers) for pending in pending_records]),)
        )
    if gone := [each.record_id for each in done if each.pending is None]:
        await connection.execute(QUERIES["delete_records"], (as_json(gone),))
    await connection.execute(COUNTING["note_changes"], (_tally(done, pending_records, counted_keys),))
    await outbox.put(connection, [forwarded for each in done if (forwarded := _forwarded(each)) is not None], numbers)


def _forwarded(prepared: Prepared) -> Forwarded | None:
    operation = prepared.operation
    return None if operation is None or prepared.pending is None else (operation, prepared.pending)


def _tally(done: Sequence[Prepared], pending_records: Sequence[PendingRecord], counted_keys: Sequence[str]) -> str:
    tally = CountChanges(counted_keys).add(pending.record for pending in pending_records)
    for each in done:
        tally.remove(decode_record(each.amendment.stored))
    return tally.as_json()
