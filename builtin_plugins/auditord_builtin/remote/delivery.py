"""Delivering entries of the send-queue over the wire contract, to AUDITOR as well as to auditord.

A bulk is all or nothing there and does not say which record was the reason, so it is halved until the reason is alone.
A record that was stored before a fault comes again with the whole batch, and then counts as delivered.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeAlias

import msgspec

from auditord.client import (
    AnsweredError,
    AsyncClient,
    ConnectionFailed,
    InvalidAnswer,
    RecordExists,
    Refused,
    ServerFailed,
    UnknownRecord,
)
from auditord_builtin.remote.conflicts import Remedy, remedy, same_content
from auditord_hookspecs import Close, Entry, Record, RecordsRejected, Replace

ABOUT_THE_RECORD: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
"""Statuses that say something about a record. Others (an expired certificate or token, a proxy without its server) say
something about the destination: every record waits until that is mended, and none goes to quarantine."""

Log: TypeAlias = "logging.LoggerAdapter[logging.Logger]"


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """A record of a batch, by the position of its entry; ``overwrite``: it corrects the one there."""

    position: int
    record: Record
    alternate_id: str | None
    overwrite: bool

    @property
    def has_two_ids(self) -> bool:
        """True if the run that is corrected may be stored under either of two ids."""
        return self.overwrite and self.alternate_id is not None


@dataclass(frozen=True, slots=True)
class Update:
    """A stop time of a batch, by the position of its entry."""

    position: int
    close: Close


Step: TypeAlias = Sequence[PendingRecord] | Update
"""Records for one request, or one update."""


def steps(entries: Sequence[Entry], *, open_records: bool, batch_size: int) -> Iterator[Step]:
    """Requests, in order. No id is twice in one, which AUDITOR refuses; open records only where they are wanted.

    A correction that may be about either of two ids is alone: what is stored there must be looked at first.
    """
    group: dict[str, PendingRecord] = {}
    for position, entry in enumerate(entries):
        if isinstance(entry, Close):
            yield list(group.values())
            group = {}
            yield Update(position, entry)
            continue
        if entry.record.stop_time is None and not open_records:
            continue
        pending = PendingRecord(position, entry.record, entry.alternate_id, isinstance(entry, Replace))
        if group and (pending.has_two_ids or pending.record.record_id in group or len(group) == batch_size):
            yield list(group.values())
            group = {}
        if pending.has_two_ids:
            yield [pending]
        else:
            group[pending.record.record_id] = pending
    yield list(group.values())


class RemoteSender:
    """Implements :class:`auditord_hookspecs.Sender` over an open client."""

    def __init__(self, client: AsyncClient, log: Log, *, open_records: bool, batch_size: int) -> None:
        self._client = client
        self._log = log
        self._open_records = open_records
        self._batch_size = batch_size

    async def send(self, entries: Sequence[Entry]) -> None:
        """Deliver the entries in order; what is already there counts as delivered.

        Raises:
            RecordsRejected: some are refused for good; the others were delivered.
            ClientError: a passing fault; some of the entries may have been delivered.
        """
        refused: dict[int, str] = {}
        for step in steps(entries, open_records=self._open_records, batch_size=self._batch_size):
            refused |= await (self._close(step) if isinstance(step, Update) else self._add(step))
        if refused:
            raise RecordsRejected(refused)

    async def _add(self, group: Sequence[PendingRecord]) -> dict[int, str]:
        """Insert records that have different ids; returns why some were refused for good."""
        if len(group) <= 1:
            reasons = {pending.position: await self._add_one(pending) for pending in group}
            return {position: reason for position, reason in reasons.items() if reason is not None}
        try:
            await _twice(lambda: self._client.add_all([pending.record for pending in group]))
        except (RecordExists, Refused) as error:
            _raise_unless_about_a_record(error)
        else:
            return {}
        middle = len(group) // 2
        return await self._add(group[:middle]) | await self._add(group[middle:])

    async def _add_one(self, wanted: PendingRecord) -> str | None:
        pending = await self._renamed(wanted) if wanted.has_two_ids else wanted
        try:
            await _twice(lambda: self._client.add(pending.record))
        except RecordExists:
            return await self._settle(pending)
        except Refused as error:
            _raise_unless_about_a_record(error)
            return str(error)
        return None

    async def _renamed(self, pending: PendingRecord) -> PendingRecord:
        """The record under the alternate id if its run is there under that one."""
        stored = await self._client.get(pending.alternate_id or "")
        if stored is None or stored.start_time != pending.record.start_time:
            return pending
        other = msgspec.structs.replace(pending.record, record_id=stored.record_id)
        return PendingRecord(pending.position, other, None, pending.overwrite)

    async def _settle(self, pending: PendingRecord) -> str | None:
        """The id is taken: find out by whom."""
        record = pending.record
        try:
            stored = await self._client.get(record.record_id)
        except (Refused, InvalidAnswer) as error:
            if isinstance(error, Refused):
                _raise_unless_about_a_record(error)
            return f"The id {record.record_id!r} is taken there, by a record that cannot be read: {error}"
        if stored is None:
            return f"The id {record.record_id!r} is taken there, by a record that cannot be read: there is none"
        return await self._apply(remedy(stored, record, overwrite=pending.overwrite), stored, pending)

    async def _apply(self, what: Remedy, stored: Record, pending: PendingRecord) -> str | None:
        record = pending.record
        match what:
            case Remedy.NOTHING:
                differs = stored.stop_time != record.stop_time or not same_content(stored, record)
                if record.stop_time is not None and differs:
                    self._log.warning("record %r is there with other content, which stays", record.record_id)
                return None
            case Remedy.STOP:
                return await self._stop(Close(record.record_id, record.stop_time or record.start_time))
            case Remedy.OTHER_ID if pending.alternate_id is not None:
                other = msgspec.structs.replace(record, record_id=pending.alternate_id)
                return await self._add_one(PendingRecord(pending.position, other, None, pending.overwrite))
            case Remedy.OTHER_ID:
                started = f"{stored.start_time:%Y-%m-%dT%H:%M:%SZ}"
                return f"The id {record.record_id!r} belongs to another run there, which started at {started}."
            case Remedy.NONE:
                other_content = "is there with other content, which only its administrator can correct."
                return f"The record {record.record_id!r} {other_content}"

    async def _close(self, update: Update) -> dict[int, str]:
        reason = await self._stop(update.close)
        return {} if reason is None else {update.position: reason}

    async def _stop(self, close: Close) -> str | None:
        try:
            await self._client.update(close.record_id, close.stop_time)
        except UnknownRecord:
            return f"There is no record {close.record_id!r} there that could be closed."
        except Refused as error:
            _raise_unless_about_a_record(error)
            return str(error)
        return None


async def _twice(post: Callable[[], Awaitable[object]]) -> None:
    """Post once more after a fault: if the first one got through, the id is taken, and by the same run.

    What was resolved in this batch before would otherwise be asked again from the beginning, record by record.
    """
    try:
        await post()
    except (ConnectionFailed, ServerFailed):
        await post()


def _raise_unless_about_a_record(error: RecordExists | Refused) -> None:
    if isinstance(error, AnsweredError) and error.status not in ABOUT_THE_RECORD:
        raise error
