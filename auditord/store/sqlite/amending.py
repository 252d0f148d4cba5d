"""Changing single records on purpose, in the writer's thread; see :mod:`auditord.store.amendments`."""

import sqlite3
from collections.abc import Sequence

from auditord.store.amendments import Action, Amended, Version
from auditord.store.prepared import Prepared
from auditord.store.protocol import Provenance
from auditord.store.rows import from_micros, to_micros
from auditord.store.sqlite import outbox
from auditord.store.sqlite.changes import StoredRow, find, overwrite
from auditord.store.sqlite.counting import count_removal
from auditord.store.sqlite.sources import QUERIES, Sources


def amend(connection: sqlite3.Connection, prepared: Sequence[Prepared], provenance: Provenance) -> Sequence[Amended]:
    """Make the changes that still fit what is there."""
    return [_amend(connection, each, provenance) for each in prepared]


def history(connection: sqlite3.Connection, record_id: str) -> Sequence[Version]:
    """The former versions of a record, the oldest first."""
    return [
        Version(
            number,
            Action(action),
            reason,
            from_micros(changed_at),
            changed_by,
            document,
            from_micros(received_at),
            None if updated_at is None else from_micros(updated_at),
            principal,
        )
        for number, action, reason, changed_at, changed_by, document, received_at, updated_at, principal in (
            connection.execute(QUERIES["list_versions"], (record_id,))
        )
    ]


def _amend(connection: sqlite3.Connection, prepared: Prepared, provenance: Provenance) -> Amended:
    stored = find(connection, prepared.record_id)
    verdict = prepared.classify(None if stored is None else stored.document)
    if stored is None or verdict is not Amended.DONE:
        return verdict
    sources = Sources(connection)
    _keep_version(connection, stored, prepared, to_micros(provenance.received_at), sources.number(provenance))
    if prepared.pending is None:
        connection.execute(QUERIES["delete_record"], (stored.seq,))
        count_removal(connection, stored.seq, stored.record)
    else:
        overwrite(connection, stored, prepared.pending)
    if prepared.pending is not None and (operation := prepared.operation) is not None:
        outbox.put(connection, sources, [(operation, str(prepared.pending.row[-1]), provenance)])
    return verdict


def _keep_version(
    connection: sqlite3.Connection, stored: StoredRow, prepared: Prepared, changed_at: int, changed_by: int
) -> None:
    amendment = prepared.amendment
    values = (amendment.action.value, amendment.reason, changed_at, changed_by, stored.seq)
    connection.execute(QUERIES["keep_version"], values)
