"""What many records share, as numbers: one byte in a row, where the texts would take forty."""

import sqlite3
from typing import Final

from auditord.database.queries import load_queries
from auditord.store.protocol import Provenance
from auditord.store.rows import kept_name

QUERIES: Final = load_queries("auditord.store.sqlite")


class Sources:
    """Numbers of principals and clients, remembered for one piece of work: it may be undone, and they with it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._numbers: dict[tuple[str | None, str | None], int] = {}

    def number(self, provenance: Provenance) -> int:
        """The number that stands for the provenance's principal and agent."""
        name = (kept_name(provenance.principal) or None, kept_name(provenance.agent) or None)
        if name not in self._numbers:
            self._numbers[name] = self._look_up(name)
        return self._numbers[name]

    def _look_up(self, name: tuple[str | None, str | None]) -> int:
        row = self._connection.execute(QUERIES["find_source"], name).fetchone()
        if row is None:
            self._connection.execute(QUERIES["insert_source"], name)
            return self._look_up(name)
        return int(row[0])


class ScoreSets:
    """Numbers of the texts that say what components score, remembered in the same way."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._numbers: dict[str, int] = {}

    def number(self, scores: str | None) -> int | None:
        """The number that stands for the text; None for none."""
        if scores is None:
            return None
        if scores not in self._numbers:
            self._numbers[scores] = self._look_up(scores)
        return self._numbers[scores]

    def _look_up(self, scores: str) -> int:
        row = self._connection.execute(QUERIES["find_score_set"], (scores,)).fetchone()
        if row is None:
            self._connection.execute(QUERIES["insert_score_set"], (scores,))
            return self._look_up(scores)
        return int(row[0])
