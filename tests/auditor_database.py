"""AUDITOR's own table in a PostgreSQL database, as its migrations leave it."""

from collections.abc import Iterable
from typing import Final

import msgspec
import psycopg

from auditord_hookspecs import Record

SCHEMA: Final = """
CREATE TABLE auditor_accounting (
    id integer GENERATED ALWAYS AS IDENTITY,
    record_id text NOT NULL UNIQUE,
    meta jsonb,
    components jsonb,
    start_time timestamptz NOT NULL,
    stop_time timestamptz,
    runtime bigint,
    updated_at timestamptz NOT NULL
)
"""

INSERT: Final = """
INSERT INTO auditor_accounting (record_id, meta, components, start_time, stop_time, runtime, updated_at)
VALUES (%s, %s::jsonb, %s::jsonb, %s, %s, %s, now())
"""


def make_auditor(url: str, records: Iterable[Record] = ()) -> None:
    """Make AUDITOR's table in an empty database, with records as its API inserts them."""
    with psycopg.connect(url) as connection:
        connection.execute(SCHEMA)
    insert(url, records)


def insert(url: str, records: Iterable[Record]) -> None:
    """Add records."""
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.executemany(INSERT, [_row(record) for record in records])


def insert_raw(url: str, record_id: str, meta: str | None, components: str | None) -> None:
    """Add a row with JSON that nobody has checked; None is SQL's NULL."""
    with psycopg.connect(url) as connection:
        row = (record_id, meta, components, "2024-01-02T00:00:00Z", "2024-01-02T01:00:00Z", 3600)
        connection.execute(INSERT, row)


def set_runtime(url: str, record_id: str, runtime: int | None) -> None:
    """Let a row have a runtime of its own, as AUDITOR keeps it."""
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE auditor_accounting SET runtime = %s WHERE record_id = %s", (runtime, record_id))


def _row(record: Record) -> tuple[object, ...]:
    meta, components = (msgspec.json.encode(each).decode() for each in (record.meta, record.components))
    return record.record_id, meta, components, record.start_time, record.stop_time, record.runtime
