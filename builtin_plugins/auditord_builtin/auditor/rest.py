"""AUDITOR's REST API (or that of another auditord), read in consecutive periods of start times.

If AUDITOR's database fails during an answer, the answer still ends normally, as if there were no more records. Each
period is therefore requested again from the latest start time that was received, until no new records arrive. The
import is complete only if the record with the latest start time has been received.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from auditord.client import AsyncClient, ClientError
from auditord_builtin.auditor.conversion import Rows, SourceFailed, in_pages
from auditord_hookspecs import InvalidRecord, RecordQuery
from auditord_hookspecs.query import AllOf, Comparison, Order, SortField, TimeCompares, TimeField
from auditord_hookspecs.wire import format_time, parse_time

_PERIOD: Final = timedelta(days=30)
"""Not shorter, since AUDITOR reads its whole table for each. Not longer, since each occupies a database connection."""

_LAST_PERIOD: Final = datetime.max.replace(tzinfo=UTC) - _PERIOD
"""A period that begins later has no end."""


class _Peek(msgspec.Struct, gc=False):
    """The fields of a record that determine its position."""

    record_id: str
    start_time: str


@dataclass(slots=True)
class _Reached:
    """The position in a period: the latest start time, and the ids received with it."""

    start: datetime
    ids: set[str] = field(default_factory=set[str])


class RestSource:
    """Implements :class:`auditord_builtin.auditor.conversion.Source`."""

    def __init__(self, url: str, connect: Callable[[], AsyncClient]) -> None:
        self._connect = connect
        self.name = f"the server {url}"

    async def rows(self, position: str | None) -> AsyncGenerator[Rows, None]:
        """Read the rows in the order of their start times."""
        try:
            async with self._connect() as client:
                first, last = await _edge(client, None), await _edge(client, None, descending=True)
                if first is None or last is None:
                    if first is not last or not await client.health():
                        raise SourceFailed(f"{self.name} is not healthy: check whether its database answers")
                    return
                span = max((last - first).total_seconds(), 1.0)
                begin = first if position is None else parse_time(position)
                async with aclosing(in_pages(self._pieces(client, begin, last))) as pages:
                    async for texts in pages:
                        reached, _ = _peek(texts[-1], begin)
                        yield _rows(texts, reached, min((reached - first).total_seconds() / span, 1.0))
        except ClientError as error:
            raise SourceFailed(str(error)) from error

    async def _pieces(
        self, client: AsyncClient, begin: datetime, last: datetime
    ) -> AsyncGenerator[Sequence[bytes], None]:
        while (start := await _edge(client, begin)) is not None:
            end = start + _PERIOD if start <= _LAST_PERIOD else None
            async with aclosing(self._period(client, start, end)) as rows:
                async for row in rows:
                    yield [row]
            if end is None:
                return
            begin = end
        if last >= begin:
            raise SourceFailed(
                f"{self.name} has records up to {format_time(last)}, but sends none after {format_time(begin)}"
            )

    async def _period(self, client: AsyncClient, begin: datetime, end: datetime | None) -> AsyncGenerator[bytes, None]:
        """Read the records of a period. ``begin`` must be the start time of its first record."""
        reached = _Reached(begin)
        while True:
            new = again = 0
            since = TimeCompares(TimeField.START, Comparison.GTE, reached.start)
            until = () if end is None else (TimeCompares(TimeField.START, Comparison.LT, end),)
            query = RecordQuery(AllOf((since, *until)), Order(SortField.START))
            async with client.stream_texts(query) as texts:
                async for text in texts:
                    start, name = _peek(text, reached.start)
                    if start < reached.start:
                        raise SourceFailed(f"{self.name} does not sort by start_time: AUDITOR 0.6 or later is needed")
                    if start > reached.start:
                        reached.start, reached.ids = start, set()
                    if name not in reached.ids:
                        reached.ids.add(name)
                        new += 1
                        yield text
                    else:
                        again += 1
            if not new and not again:
                raise SourceFailed(f"{self.name} no longer sends records that it sent before: check its database")
            if not new:
                return


def _rows(texts: Sequence[bytes], reached: datetime, fraction: float) -> Rows:
    return Rows(texts, lambda place: _place(texts[place]), format_time(reached), fraction)


async def _edge(client: AsyncClient, begin: datetime | None, *, descending: bool = False) -> datetime | None:
    """Return the first (or last) start time since ``begin``."""
    where = AllOf() if begin is None else AllOf((TimeCompares(TimeField.START, Comparison.GTE, begin),))
    async with client.stream_texts(RecordQuery(where, Order(SortField.START, descending), limit=1)) as texts:
        async for text in texts:
            try:
                return parse_time(msgspec.json.decode(text, type=_Peek).start_time)
            except (msgspec.DecodeError, InvalidRecord) as error:
                raise SourceFailed(f"a record has no valid start time ({error}): {text[:300]!r}") from error
    return None


def _peek(text: bytes, otherwise: datetime) -> tuple[datetime, str]:
    try:
        row = msgspec.json.decode(text, type=_Peek)
        return parse_time(row.start_time), row.record_id
    except (msgspec.DecodeError, InvalidRecord):
        return otherwise, text.decode(errors="replace")  # not a record, but the row must be reported once


def _place(text: bytes) -> str:
    try:
        return f"record {msgspec.json.decode(text, type=_Peek).record_id}"
    except msgspec.DecodeError:
        return "something that is not a record"
