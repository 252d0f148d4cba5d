"""The statements of record stores by name. Most are shared by both databases, except for a few words.

In shared statements, names in braces stand for these words, some with an argument: ``{any ids}``,
``{micros start_time}``. Parameters are written as ``:name``. Other statements are in each database's ``queries.sql``.
"""

from collections.abc import Mapping
from typing import Final, LiteralString

from auditord.database.sql_files import load_queries
from auditord.store.columns import POSTGRES_LISTS, SQLITE_LISTS

POSTGRES_WORDS: Final[Mapping[str, LiteralString]] = {
    "schema": "auditord.",
    "any": "= ANY (ARRAY(SELECT jsonb_array_elements_text(:{}::jsonb)))",
    "arrival": "arrival",
    "clock": "clock_timestamp()",
    # The position up to which no running transaction can add a version.
    "end_of_feed": '(SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1 + "offset" FROM auditord.feed)',
    "greatest": "greatest",
    "json": "text",
    "least": "least",
    "lock": "FOR UPDATE {}",
    "micros": "(extract(EPOCH FROM {}) * 1000000)::bigint",
    "micros_since": "(extract(EPOCH FROM clock_timestamp() - {}) * 1000000)::bigint",
    "now": "now()",
    "place_in": "strpos",
}

SQLITE_WORDS: Final[Mapping[str, LiteralString]] = {
    "schema": "",
    "any": "IN (SELECT value FROM json_each(:{}))",
    "arrival": "seq",
    "clock": ":now",
    "end_of_feed": "(SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'records')",
    "greatest": "max",
    "json": "BLOB",
    "least": "min",
    "lock": "",  # SQLite has one writer at a time
    "micros": "{}",
    "micros_since": ":now - {}",
    "now": "CAST(strftime('%s', 'now') AS INTEGER) * 1000000",
    "place_in": "instr",
}

_SHARED: Final = ("queries.sql", "feed.sql", "lake.sql", "copying.sql")


def postgres_statements() -> Mapping[str, LiteralString]:
    words: Mapping[str, LiteralString] = {**POSTGRES_LISTS, **POSTGRES_WORDS}
    return load_queries("auditord.store", *_SHARED, "postgres/queries.sql", words=words, parameter="%({})s")


def sqlite_statements() -> Mapping[str, LiteralString]:
    words: Mapping[str, LiteralString] = {**SQLITE_LISTS, **SQLITE_WORDS}
    return load_queries("auditord.store", *_SHARED, "sqlite/queries.sql", words=words)
