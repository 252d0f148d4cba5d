"""Records written out for people and programs: table, JSON, NDJSON or CSV; one at a time, never all in memory."""

import csv
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TextIO, TypeAlias

from auditord.cli.tables import new_table, print_table
from auditord_hookspecs import Record
from auditord_hookspecs.aggregates import amount_of
from auditord_hookspecs.spreadsheets import no_formula
from auditord_hookspecs.terminal import escaped
from auditord_hookspecs.wire import encode_record, format_time

Cell: TypeAlias = str | int | None
Export: TypeAlias = Callable[[AsyncIterator[Record], TextIO], Awaitable[int]]

COMPONENT_COLUMNS: Final = ("Cores", "Memory", "GPU", "TotalCPU", "MaxRSS")
META_COLUMNS: Final = (("site_id", "site"), ("group_id", "group"), ("user_id", "user"))
CSV_COLUMNS: Final = (
    *("record_id", "start_time", "stop_time", "runtime"),
    *(names[0] for names in META_COLUMNS),
    *COMPONENT_COLUMNS,
    *("meta", "components"),
)


async def write_table(records: AsyncIterator[Record], out: TextIO) -> int:
    """A table for people; returns how many rows it has. Meant for few records: a table is laid out as a whole."""
    table = new_table("record", "site", "group", "user", "start (UTC)", "runtime", "cores")
    for column in table.columns[-2:]:
        column.right = True
    async for record in records:
        table.add_row(*_table_row(record))
    print_table(table, out)
    return table.row_count


def _table_row(record: Record) -> list[str]:
    runtime = "open" if record.runtime is None else f"{record.runtime} s"
    cores = amount_of(record, "Cores")
    return [
        record.record_id,
        *(first_value(record, names) for names in META_COLUMNS),
        f"{record.start_time:%Y-%m-%d %H:%M:%S}",
        runtime,
        "" if cores is None else str(cores),
    ]


async def write_ndjson(records: AsyncIterator[Record], out: TextIO) -> int:
    """One JSON object per line, as the REST API writes it; returns how many."""
    count = 0
    async for record in records:
        out.write(encode_record(record).decode() + "\n")
        count += 1
    return count


async def write_json(records: AsyncIterator[Record], out: TextIO) -> int:
    """One JSON array; returns how many records it has."""
    count = 0
    out.write("[")
    async for record in records:
        out.write(("," if count else "") + "\n" + encode_record(record).decode())
        count += 1
    out.write("\n]\n" if count else "]\n")
    return count


async def write_csv(records: AsyncIterator[Record], out: TextIO, shown: Callable[[Cell], Cell] = no_formula) -> int:
    """RFC 4180 with a header; frequent fields as columns, all of meta and components as JSON in the last two.

    Text that a spreadsheet would take for a formula is escaped (:mod:`auditord_hookspecs.spreadsheets`), unless
    ``shown`` leaves cells as they are, for programs.
    """
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    count, to_look_at = 0, out.isatty()
    async for record in records:
        row = map(shown, _csv_row(record))
        writer.writerow([escaped(cell) if to_look_at and isinstance(cell, str) else cell for cell in row])
        count += 1
    return count


def _csv_row(record: Record) -> list[Cell]:
    document = json.loads(encode_record(record))
    return [
        record.record_id,
        format_time(record.start_time),
        None if record.stop_time is None else format_time(record.stop_time),
        record.runtime,
        *(first_value(record, names) for names in META_COLUMNS),
        *(amount_of(record, name) for name in COMPONENT_COLUMNS),
        json.dumps(document["meta"], ensure_ascii=False),
        json.dumps(document["components"], ensure_ascii=False),
    ]


def first_value(record: Record, names: Sequence[str]) -> str:
    """The first value under the first of the names that the record's meta has, or an empty text."""
    for name in names:
        for value in (record.meta or {}).get(name, ()):
            return value
    return ""


EXPORTS: Final[Mapping[str, Export]] = {
    "table": write_table,
    "json": write_json,
    "ndjson": write_ndjson,
    "csv": write_csv,
}
