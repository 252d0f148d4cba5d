"""Changing single records on purpose; see :mod:`auditord.store.amendments`.

Each row is locked and compared with what whoever wants the change has seen; other daemons that judge the same records
at the same time look again.
"""

from collections.abc import Mapping, Sequence

from auditord.database.postgres import Connection
from auditord.store.amendments import Action, Amended, Version
from auditord.store.ledger import Carried
from auditord.store.postgres import outbox
from auditord.store.postgres.changes import again
from auditord.store.postgres.counting import QUERIES as COUNTING
from auditord.store.postgres.counting import Tally
from auditord.store.postgres.rows import as_json, make_row
from auditord.store.postgres.sources import QUERIES, Numbers, Sources
from auditord.store.postgres.versions import Kept, keep_versions
from auditord.store.prepared import Prepared
from auditord.store.protocol import Provenance
from auditord.store.rows import Offer
from auditord_hookspecs.wire import decode_record


async def amend(
    connection: Connection,
    prepared: Sequence[Prepared],
    provenance: Provenance,
    sources: Sources,
    counted_keys: Sequence[str],
) -> Sequence[Amended]:
    """Make the changes that still fit what is there, in one transaction."""
    offers = [each.offer for each in prepared if each.offer is not None]
    numbers = await sources.learn(connection, [provenance], (offer.scores for offer in offers))

    async def work() -> Sequence[Amended]:
        async with connection.transaction():
            found = await _locked(connection, prepared)
            verdicts = [each.judge(found.get(each.record_id)) for each in prepared]
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
    offers = [each.offer for each in done if each.offer is not None]
    ids = as_json([each.record_id for each in done])
    await connection.execute(QUERIES["settle_differences"], (ids,))
    if offers:
        await connection.execute(
            QUERIES["overwrite_records"], (as_json([make_row(offer, numbers) for offer in offers]),)
        )
    if gone := [each.record_id for each in done if each.offer is None]:
        await connection.execute(QUERIES["delete_records"], (as_json(gone),))
    await connection.execute(COUNTING["note_changes"], (_tally(done, offers, counted_keys),))
    await outbox.put(connection, [carried for each in done if (carried := _carried(each)) is not None], numbers)


def _carried(prepared: Prepared) -> Carried | None:
    operation = prepared.operation
    return None if operation is None or prepared.offer is None else (operation, prepared.offer)


def _tally(done: Sequence[Prepared], offers: Sequence[Offer], counted_keys: Sequence[str]) -> str:
    tally = Tally(counted_keys).add(offer.record for offer in offers)
    for each in done:
        tally.remove(decode_record(each.amendment.stored))
    return tally.as_json()
