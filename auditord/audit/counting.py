"""Counts of an audit by day and site, and the ids that the inventory has named (on disk: they can be millions)."""

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Generator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Final

from auditord.audit.values import FAULTS, DayCounts, Discrepancy, State
from auditord_hookspecs import Record

_LISTED: Final = 1_000
_ANONYMOUS: Final = ""  # SQLite's name of a database in a temporary file, which only holds what memory does not


class NamedIds:
    """The ids of records that the inventory has named."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.execute("CREATE TABLE named (record_id TEXT PRIMARY KEY) WITHOUT ROWID")

    @classmethod
    @contextmanager
    def opened(cls) -> Generator["NamedIds", None, None]:
        """Open an empty set of ids in a temporary file, which is deleted when the context is left."""
        with closing(sqlite3.connect(_ANONYMOUS, isolation_level=None, check_same_thread=False)) as connection:
            connection.execute("BEGIN")
            yield cls(connection)

    def add(self, record_id: str) -> bool:
        """Note an id; False if it was named before."""
        return self._connection.execute("INSERT OR IGNORE INTO named VALUES (?)", (record_id,)).rowcount == 1

    def among(self, record_ids: Collection[str]) -> set[str]:
        """Return those of the ids that are in the set."""
        rows = self._connection.execute(
            "SELECT record_id FROM named WHERE record_id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(record_ids)),),
        )
        return {record_id for (record_id,) in rows}


class AuditCounts:
    """Counts by day, site and state, and the first discrepancies."""

    def __init__(self) -> None:
        self._counts = Counter[tuple[str, str, State]]()
        self.discrepancies: list[Discrepancy] = []
        self.unlisted = 0
        self.skipped = Counter[str]()

    def add(self, state: State, record: Record, detail: str = "") -> None:
        """Count a run that is over."""
        self.note(state, record.record_id, record.stop_time or record.start_time, site_of(record), detail)

    def note(self, state: State, name: str, ended: datetime | None, site: str, detail: str = "") -> None:
        """Count a run of this name; None if its end is unknown."""
        day = "" if ended is None else ended.date().isoformat()
        self._counts[day, site, state] += 1
        if state not in FAULTS:
            return
        if len(self.discrepancies) < _LISTED:
            self.discrepancies.append(Discrepancy(state, name, day, site, detail))
        else:
            self.unlisted += 1

    def days(self) -> list[DayCounts]:
        """The counts, in the order of days and sites."""
        found: dict[tuple[str, str], dict[str, int]] = {}
        for (day, site, state), count in sorted(self._counts.items()):
            found.setdefault((day, site), {})[state] = count
        return [DayCounts(day, site, counts) for (day, site), counts in found.items()]


def site_of(record: Record) -> str:
    """Return the first site of a record; empty without one."""
    sites = (record.meta or {}).get("site_id") or ("",)
    return sites[0]
