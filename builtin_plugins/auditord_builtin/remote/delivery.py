"""The sender ``remote``: deliver entries of the send-queue to AUDITOR or auditord, over the wire contract."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from enum import Enum
from http import HTTPStatus
from typing import Final, TypeAlias

import msgspec
from pydantic import Field

from auditord.client import (
    AsyncClient,
    ConnectionFailed,
    InvalidAnswer,
    RecordExists,
    Refused,
    ServerFailed,
    UnknownRecord,
)
from auditord_hookspecs import (
    AuditordError,
    Close,
    Context,
    Entry,
    InstanceConfig,
    Record,
    RecordsRejected,
    Replace,
    Sender,
    SenderContext,
    SenderKind,
)
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.http import HttpOptions
from auditord_hookspecs.records import PROVENANCE_KEYS
from auditord_hookspecs.sources import RemoteSource


class Remedy(Enum):
    """The next step for a record whose id is already taken at the destination."""

    NOTHING = "it is there"
    STOP = "set its stop time"
    OTHER_ID = "the id belongs to another run"
    NONE = "the wire contract has no request for it"


def remedy(stored: Record, offered: Record, *, overwrite: bool) -> Remedy:
    """Choose how to get the record to the destination.

    Args:
        stored: the record at the destination.
        offered: the record to insert.
        overwrite: replace the stored record as far as the contract allows, which is its stop time.
    """
    if stored.start_time != offered.start_time:
        # An open record is posted again with a new start if its drone came back.
        are_open = stored.stop_time is None and offered.stop_time is None
        return Remedy.NOTHING if are_open and same_content(stored, offered) else Remedy.OTHER_ID
    moved = offered.stop_time is not None and stored.stop_time != offered.stop_time
    # The destination can correct the times of a finished record, but not its labels.
    only_labels = stored.stop_time is not None and stored.components == offered.components
    if overwrite and not (same_content(stored, offered) or (moved and only_labels)):
        return Remedy.NONE
    return Remedy.STOP if moved and (overwrite or stored.stop_time is None) else Remedy.NOTHING


def same_content(stored: Record, offered: Record) -> bool:
    """Return True if meta, without provenance keys, and components are equal."""
    return _meta(stored) == _meta(offered) and stored.components == offered.components


def _meta(record: Record) -> dict[str, tuple[str, ...]]:
    return {key: values for key, values in (record.meta or {}).items() if key not in PROVENANCE_KEYS}


ABOUT_THE_RECORD: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
"""Statuses that concern a record.

So does 403 (a site that the role may not write) if the destination accepts other records meanwhile. Other statuses (an
expired certificate or token, a proxy without its server) concern the destination. All records then wait until it works
again, and none goes to quarantine.
"""

Reasons: TypeAlias = "dict[int, str | Refused]"
"""Why entries are refused, by position. :class:`Refused` is a 403."""

Log: TypeAlias = "logging.LoggerAdapter[logging.Logger]"


class PendingRecord(msgspec.Struct, frozen=True):
    """A record, with the position of its entry in the batch. With ``overwrite``, it corrects the stored record."""

    position: int
    record: Record
    alternate_id: str | None
    overwrite: bool

    @property
    def has_two_ids(self) -> bool:
        """True if the corrected run may be stored under either of two ids."""
        return self.overwrite and self.alternate_id is not None


class Update(msgspec.Struct, frozen=True):
    """A stop time, with the position of its entry in the batch."""

    position: int
    close: Close


Step: TypeAlias = Sequence[PendingRecord] | Update
"""The records of one request, or one update."""


def steps(entries: Sequence[Entry], *, open_records: bool, batch_size: int) -> Iterator[Step]:
    """Yield requests in order. No request repeats an id, which AUDITOR would refuse.

    A correction gets its own request, since the stored record must be looked up first.
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
        if group and (pending.overwrite or pending.record.record_id in group or len(group) == batch_size):
            yield list(group.values())
            group = {}
        if pending.overwrite:
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
        """Deliver the entries in order. Entries that the destination already has count as delivered.

        Raises:
            RecordsRejected: some entries were refused for good. The others were delivered.
            ClientError: a temporary error. Some entries may have been delivered.
        """
        refused: Reasons = {}
        accepts = False
        for step in steps(entries, open_records=self._open_records, batch_size=self._batch_size):
            if isinstance(step, Update):
                refused |= await _reasons(step.position, self._stop(step.close))
                continue
            refused |= await self._add(step)
            accepts |= any(each.position not in refused and not each.overwrite for each in step)
        for error in refused.values():
            if isinstance(error, Refused) and not accepts:
                raise error
        if refused:
            hint = "; the role there may not write its site, or the id belongs to another site (see record_prefix)"
            reasons = {at: f"{each}{'' if isinstance(each, str) else hint}" for at, each in refused.items()}
            raise RecordsRejected(reasons)

    async def _add(self, group: Sequence[PendingRecord]) -> Reasons:
        """Insert records with different ids, and return the reasons for those that were refused."""
        if not group:
            return {}
        if len(group) == 1:
            return await _reasons(group[0].position, self._add_one(group[0]))
        try:
            await _twice(lambda: self._client.add_all([pending.record for pending in group]))
        except RecordExists:
            pass
        except Refused as error:
            if error.status != HTTPStatus.FORBIDDEN:
                _raise_unless_about_a_record(error)
        else:
            return {}
        middle = len(group) // 2
        return await self._add(group[:middle]) | await self._add(group[middle:])

    async def _add_one(self, wanted: PendingRecord) -> str | None:
        pending = wanted
        if wanted.has_two_ids:  # the run may be stored under its alternate id
            stored = await self._client.get(wanted.alternate_id or "")
            if stored is not None and stored.start_time == wanted.record.start_time:
                renamed = msgspec.structs.replace(wanted.record, record_id=stored.record_id)
                pending = PendingRecord(wanted.position, renamed, None, wanted.overwrite)
        record = pending.record
        if pending.overwrite:  # auditord accepts another record of a run that has ended, but keeps the stored one
            stored = await self._client.get(record.record_id)
            if stored is not None and (record.stop_time is None or stored.stop_time is not None):
                return await self._apply(remedy(stored, record, overwrite=True), stored, pending)
        try:
            await _twice(lambda: self._client.add(record))
        except RecordExists:
            return await self._settle(pending)
        except Refused as error:
            _raise_unless_about_a_record(error)
            return str(error)
        return None

    async def _settle(self, pending: PendingRecord) -> str | None:
        """Get the stored record and resolve the conflict. Return a reason if the record is refused for good."""
        record = pending.record
        try:
            stored = await self._client.get(record.record_id)
        except (Refused, InvalidAnswer) as error:
            if isinstance(error, Refused):
                _raise_unless_about_a_record(error)
            return f"The id {record.record_id!r} is taken there, by a record that cannot be read: {error}"
        if stored is None:
            return f"The id {record.record_id!r} is taken there, but the server returns no record with it"
        return await self._apply(remedy(stored, record, overwrite=pending.overwrite), stored, pending)

    async def _apply(self, step: Remedy, stored: Record, pending: PendingRecord) -> str | None:
        record = pending.record
        match step:
            case Remedy.NOTHING:
                differs = stored.stop_time != record.stop_time or not same_content(stored, record)
                if record.stop_time is not None and differs:
                    self._log.warning("record %r is there with other content, which stays", record.record_id)
                return None
            case Remedy.STOP:
                return await self._stop(Close(record.record_id, record.stop_time or record.start_time))
            case Remedy.OTHER_ID if pending.alternate_id is not None:
                renamed = msgspec.structs.replace(record, record_id=pending.alternate_id)
                return await self._add_one(PendingRecord(pending.position, renamed, None, pending.overwrite))
            case Remedy.OTHER_ID:
                started = f"{stored.start_time:%Y-%m-%dT%H:%M:%SZ}"
                return f"The id {record.record_id!r} belongs to another run there, which started at {started}."
            case Remedy.NONE:
                other_content = "is there with other content, which only its administrator can correct."
                return f"The record {record.record_id!r} {other_content}"

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
    """Retry a request once after a temporary error. If the first one succeeded, the id is taken by the same run.

    Without the retry, records of the batch that were settled before would be settled again, one by one.
    """
    try:
        await post()
    except (ConnectionFailed, ServerFailed):
        await post()


async def _reasons(position: int, act: Awaitable[str | None]) -> Reasons:
    try:
        reason = await act
    except Refused as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return {position: error}
    return {} if reason is None else {position: reason}


def _raise_unless_about_a_record(error: Refused) -> None:
    if error.status not in ABOUT_THE_RECORD:
        raise error


MAX_BATCH: Final = 500
RETRY_SECONDS: Final = 0.1
_PATIENCE: Final = timedelta(seconds=10)


class RemoteConfig(RemoteSource, InstanceConfig):
    """Ships records to another auditord or AUDITOR."""

    open_records: bool = Field(
        default=False,
        description="Also send open records, which have no stop time; otherwise a record is sent once it ends.",
    )
    batch_size: int = Field(default=MAX_BATCH, ge=1, le=MAX_BATCH, description="The number of records per request.")


@asynccontextmanager
async def open_remote(config: RemoteConfig, context: SenderContext) -> AsyncGenerator[Sender, None]:
    """Open a client for the destination. It connects when the first record is sent."""
    client = AsyncClient(
        config.url,
        tls=config.tls,
        token=None if config.token is None else config.token.get_secret_value(),
        timeout=config.timeout.total_seconds(),
        retry_waits=(RETRY_SECONDS,),  # the daemon itself retries with growing pauses, and reports errors
    )
    async with client:
        yield RemoteSender(client, context.log, open_records=config.open_records, batch_size=config.batch_size)


async def check(config: RemoteConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Check that the destination is healthy. Whether it would accept the records is not checked."""
    options = HttpOptions(tls=config.tls, timeout=_PATIENCE, attempts=1)
    try:
        async with context.http(options) as http:
            answer = await http.request("GET", f"{config.url}/health_check")
    except AuditordError as error:
        remedy = "check the server, url and tls; records wait in the spool until it answers"
        yield Finding(Severity.FAILURE, config.url, str(error), remedy)
        return
    if answer.status == HTTPStatus.OK:
        yield Finding(Severity.OK, config.url, "it answers and is healthy")
    else:
        text = f"/health_check answers {answer.status}: it is unhealthy, or neither auditord nor AUDITOR"
        yield Finding(Severity.FAILURE, config.url, text, "run auditord doctor on that host, or correct url")


REMOTE: Final = SenderKind(name="remote", config=RemoteConfig, open=open_remote, batch_size=MAX_BATCH, check=check)
