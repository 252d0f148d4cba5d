"""Corrections, closings and deletions of single records by operators."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Literal, TypeAlias

import msgspec

from auditord.actions import Closing, Note, Outcome
from auditord.ingest import transformed_once
from auditord.store import Action, Amended, Amendment, Provenance, RecordStore
from auditord.store.amendments import check_reason
from auditord_hookspecs import Record, Transform
from auditord_hookspecs.records import check_name
from auditord_hookspecs.wire import decode_record, format_time

AT_ONCE: Final = 200
"""Records that one transaction changes: others wait for its end."""


_WAITS: Final = "changes of it wait in the spool and would undo this: try again when they have arrived"

Waiting: TypeAlias = Callable[[Collection[str]], Awaitable[Collection[str]]]


class Objection(Exception):
    """The reason for which a record is left as it is."""


class RecordChanged(Exception):
    """The record is not as it was when the operator looked at it."""


Change: TypeAlias = Callable[[Record], Record | None]
"""Gives the replacement of a record, None for nothing; may raise :class:`Objection` or :class:`RecordChanged`."""


class RecordEditor:
    """Implements :class:`auditord.actions.RecordActions` on a record store.

    Args:
        waiting: gives those of some ids that have changes which are still on their way into the store.
    """

    def __init__(
        self,
        store: RecordStore,
        now: Callable[[], datetime],
        transform: Transform | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        self._store = store
        self._now = now
        self._transform = transform
        self._waiting = waiting

    async def correct(self, record: Record, seen: Record | None, note: Note) -> Outcome:
        """Put a record in the place of the stored one."""
        (outcome,) = await self._change(
            Action.CORRECT, {record.record_id: partial(self._corrected, record, seen)}, note
        )
        return outcome

    async def close(self, closings: Sequence[Closing], note: Note) -> Sequence[Outcome]:
        """Give open records their stop times."""
        wanted = {closing.record_id: partial(_closed, closing.stop, self._now()) for closing in closings}
        return await self._change(Action.CLOSE, wanted, note)

    async def delete(self, ids: Sequence[str], note: Note) -> Sequence[Outcome]:
        """Delete records."""
        return await self._change(Action.DELETE, dict.fromkeys(ids, lambda _: None), note)

    def _corrected(self, record: Record, seen: Record | None, stored: Record) -> Record:
        if seen is not None and seen != stored:
            raise RecordChanged
        return record if self._transform is None else transformed_once(self._transform, record, stored)

    async def _change(self, action: Action, wanted: Mapping[str, Change], note: Note) -> Sequence[Outcome]:
        check_reason(note.reason)
        check_name(note.by)
        outcomes: list[Outcome] = []
        ids = list(wanted)
        for first in range(0, len(ids), AT_ONCE):
            some = {record_id: wanted[record_id] for record_id in ids[first : first + AT_ONCE]}
            outcomes += await self._change_some(action, some, note)
        return outcomes

    async def _change_some(self, action: Action, wanted: Mapping[str, Change], note: Note) -> Sequence[Outcome]:
        waiting = () if self._waiting is None else await self._waiting(list(wanted))
        found = {
            record_id: Outcome(record_id, "refused", _WAITS)
            if record_id in waiting
            else await self._planned(action, record_id, change, note)
            for record_id, change in wanted.items()
        }
        amendments = {record_id: each for record_id, each in found.items() if isinstance(each, Amendment)}
        provenance = Provenance(self._now(), f"user:{note.by}")
        amended = await self._store.amend(list(amendments.values()), provenance)
        done = dict(zip(amendments, amended, strict=True))
        return [
            each if isinstance(each, Outcome) else Outcome(record_id, _OUTCOMES[done[record_id]])
            for record_id, each in found.items()
        ]

    async def _planned(self, action: Action, record_id: str, change: Change, note: Note) -> Amendment | Outcome:
        stored = await self._store.get(record_id)
        if stored is None:
            return Outcome(record_id, "missing")
        try:
            return Amendment(action, stored, change(decode_record(stored)), note.reason)
        except Objection as objection:
            return Outcome(record_id, "refused", str(objection))
        except RecordChanged:
            return Outcome(record_id, "changed")


_OUTCOMES: Final[Mapping[Amended, Literal["done", "same", "changed", "missing"]]] = {
    Amended.DONE: "done",
    Amended.SAME: "same",
    Amended.CHANGED: "changed",
    Amended.MISSING: "missing",
}


def _closed(stop: datetime | timedelta, now: datetime, stored: Record) -> Record:
    if stored.stop_time is not None:
        raise Objection(f"it stopped at {format_time(stored.stop_time)}")
    try:
        stop_time = stop if isinstance(stop, datetime) else stored.start_time + stop
    except OverflowError as error:
        raise Objection("it would stop after the end of the calendar") from error
    if stop_time < stored.start_time:
        raise Objection(f"it started later, at {format_time(stored.start_time)}")
    if stop_time > now:
        raise Objection(f"it would stop in the future, at {format_time(stop_time)}")
    return msgspec.structs.replace(stored, stop_time=stop_time)
