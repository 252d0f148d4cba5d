"""Numbers for texts that many records share, so that a row has some bytes instead of hundreds."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

import msgspec

from auditord.duplicates import Duplicates
from auditord.errors import StoreUnavailable
from auditord.store.rows import LONGEST_NAME, PendingRecord, amounts_of, make_pending
from auditord.store.work import Work, ask
from auditord_hookspecs import Provenance, Record

_MOST: Final = 10_000
"""The maximum number of cached texts of each kind."""

_Name: TypeAlias = tuple[str, str]
_Numbers: TypeAlias = tuple[int, Sequence[int | None]]
_Found: TypeAlias = tuple[int, Mapping[str, int]]
LookUp: TypeAlias = Callable[[Work[_Found]], Awaitable[_Found]]
"""Does work on the database, and returns after the commit."""


class Origins:
    """The numbers of origins (pairs of principal and agent) and of score sets. The database never deletes one.

    Callers get their numbers in the order of their calls, so that changes of one record stay in order.
    """

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._in_order = asyncio.Lock()
        self._fault: StoreUnavailable | None = None
        self._failures = 0
        self._origins: dict[_Name, int] = {}
        self._score_sets: dict[str, int] = {}

    async def number(self, provenance: Provenance) -> int:
        """Return the number of the provenance's principal and agent."""
        origin, _ = self.find_cached(provenance, ()) or await self.numbers(provenance, ())
        return origin

    def find_cached(self, provenance: Provenance, scores: Sequence[str | None]) -> _Numbers | None:
        """Return the numbers if all are cached and no lookup is in progress; see :meth:`numbers`."""
        if self._in_order.locked():
            return None
        try:
            return self._read_cache(_name(provenance), scores)
        except KeyError:
            return None

    async def numbers(self, provenance: Provenance, scores: Sequence[str | None]) -> _Numbers:
        """Return the numbers of the provenance and of each text of a score set (None for None), adding new ones."""
        name = _name(provenance)
        failures = self._failures
        async with self._in_order:
            if max(len(self._origins), len(self._score_sets)) >= _MOST:
                self._origins, self._score_sets = {}, {}
            unknown = {text for text in scores if text is not None} - self._score_sets.keys()
            if unknown or name not in self._origins:
                if self._fault is not None and failures < self._failures:
                    raise self._fault.__class__(str(self._fault))  # instead of one attempt after another by all callers
                try:
                    origin, score_sets = await self._look_up(_numbers(name, unknown))
                except StoreUnavailable as error:
                    self._fault = error
                    self._failures += 1
                    raise
                self._origins[name] = origin
                self._score_sets.update(score_sets)
            return self._read_cache(name, scores)

    async def pending(self, record: Record, document: str, provenance: Provenance) -> PendingRecord:
        """Return a record to be stored, keeping its wire text byte for byte."""
        origin, (score_set,) = await self.numbers(provenance, [amounts_of(record.components).scores])
        pending = make_pending(record, provenance, Duplicates.SAME_RUN, origin=origin, score_set=score_set)
        return msgspec.structs.replace(pending, row=msgspec.structs.replace(pending.row, document=document))

    async def wait(self) -> None:
        """Wait until all pending calls have an answer."""
        async with self._in_order:
            pass

    def _read_cache(self, name: _Name, texts: Sequence[str | None]) -> _Numbers:
        return self._origins[name], [None if text is None else self._score_sets[text] for text in texts]


def _name(provenance: Provenance) -> _Name:
    return provenance.principal or "", provenance.agent or ""


def _numbers(name: _Name, texts: Collection[str]) -> Work[_Found]:
    # A header may be long, or not be valid text.
    principal, agent = [text[:LONGEST_NAME].replace("\0", "").encode(errors="replace").decode() for text in name]
    origin = yield from _number("origin", {"principal": principal, "agent": agent})
    score_sets: dict[str, int] = {}
    for text in texts:
        digest = blake2b(text.encode(), digest_size=16).digest()  # the text may be too long for an index
        score_sets[text] = yield from _number("score_set", {"scores": text, "digest": digest})
    return origin, score_sets


def _number(sort: str, values: Mapping[str, object]) -> Work[int]:
    rows = yield from ask(f"find_{sort}", **values)
    if not rows:
        yield from ask(f"insert_{sort}", **values)
        rows = yield from ask(f"find_{sort}", **values)
    if not rows:
        raise StoreUnavailable(f"The database did not store the {sort}: {values}.")
    return int(rows[0][0])
