"""What many records share, as numbers: four bytes in a row, where the texts would take hundreds."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, LiteralString, TypeAlias

from auditord.database.postgres import Connection
from auditord.database.queries import load_queries
from auditord.errors import StoreUnavailable
from auditord.store.protocol import Provenance
from auditord.store.rows import kept_name

QUERIES: Final = load_queries("auditord.store.postgres")

_MOST: Final = 10_000
"""Texts of each sort that are remembered at a time."""

_Name: TypeAlias = tuple[str, str]


class Numbers:
    """The numbers of principals with their clients, and of what components score."""

    def __init__(self, sources: Mapping[_Name, int], score_sets: Mapping[str, int]) -> None:
        self._sources = sources
        self._score_sets = score_sets

    def source(self, provenance: Provenance) -> int:
        """The number that stands for the provenance's principal and agent."""
        number = self._sources.get(_plain_name(provenance))
        return self._sources[_name(provenance)] if number is None else number

    def score_set(self, scores: str | None) -> int | None:
        """The number that stands for the text; None for none."""
        return None if scores is None else self._score_sets[scores]


class Sources:
    """Looks numbers up once and remembers them: none is ever deleted."""

    def __init__(self) -> None:
        self._sources: dict[_Name, int] = {}
        self._score_sets: dict[str, int] = {}

    async def learn(
        self, connection: Connection, provenances: Iterable[Provenance], scores: Iterable[str | None]
    ) -> Numbers:
        """The numbers for these.

        Args:
            connection: in no transaction, since what is undone must not be remembered.
            provenances: of the records that are to be written.
            scores: the same.
        """
        if max(len(self._sources), len(self._score_sets)) >= _MOST:
            self._sources, self._score_sets = {}, {}  # new ones: others may still use the old ones
        sources, score_sets = self._sources, self._score_sets
        for plain in {_plain_name(provenance) for provenance in provenances} - sources.keys():
            name = _kept(plain)
            if name not in sources:
                sources[name] = await _number(connection, "source", name, name)
        for text in {text for text in scores if text is not None} - score_sets.keys():
            digest = blake2b(text.encode(), digest_size=16).digest()
            score_sets[text] = await _number(connection, "score_set", (digest,), (digest, text))
        return Numbers(sources, score_sets)


async def _number(
    connection: Connection, sort: LiteralString, key: tuple[object, ...], values: tuple[object, ...]
) -> int:
    number = await _find(connection, sort, key)
    if number is None:
        await connection.execute(QUERIES[f"insert_{sort}"], values)
        number = await _find(connection, sort, key)
    if number is None:
        raise StoreUnavailable(f"The database does not keep the {sort} that is put into it: {key}.")
    return number


async def _find(connection: Connection, sort: LiteralString, key: tuple[object, ...]) -> int | None:
    row = await (await connection.execute(QUERIES[f"find_{sort}"], key)).fetchone()
    return None if row is None else row[0]


def _name(provenance: Provenance) -> _Name:
    return _kept(_plain_name(provenance))


def _plain_name(provenance: Provenance) -> _Name:
    """What :func:`_name` is for nearly all of them; if it is remembered, it is the name."""
    return provenance.principal or "", provenance.agent or ""


def _kept(name: _Name) -> _Name:
    principal, agent = name
    return kept_name(principal), kept_name(agent)
