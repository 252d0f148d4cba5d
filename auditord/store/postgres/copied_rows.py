"""Encode rows of the table of records in PostgreSQL's binary COPY format (documented under COPY, Binary Format).

Parts that many rows share are encoded once. In this format, a timestamptz is an int8, and jsonb is its text after a
version number.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from struct import Struct
from typing import Final

import msgspec

from auditord.database.instants import to_micros
from auditord.store.columns import COLUMNS, Part, compile_function
from auditord.store.rows import Amounts, Labels, PendingRecord
from auditord_hookspecs import Provenance
from auditord_hookspecs.wire import KEPT_PARTS

BEGIN: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""The header before the first row."""

END: Final = b"\xff\xff"
"""The trailer after the last row."""

_TO_2000: Final = to_micros(datetime(2000, 1, 1, tzinfo=UTC))  # the origin of PostgreSQL's microseconds

_SECOND: Final = 1_000_000
_NULL: Final = b"\xff\xff\xff\xff"
_TRUE: Final = b"\0\0\0\1\1"
_JSONB_VERSION: Final = b"\x01"

# For a finished and an open record: the number of columns; start_time, content, received_at, source_id, stop_time and
# runtime, each after its length; and the length of record_id.
_finished: Final = Struct(">hiqiqiqiiiqiqi").pack
_open: Final = Struct(">hiqiqiqiiiii").pack
_length: Final = Struct(">i").pack
_int2: Final = Struct(">ih").pack
_int4: Final = Struct(">ii").pack
_int8: Final = Struct(">iq").pack


class CopiedRows:
    """Encodes rows in the order of :data:`auditord.store.columns.COLUMNS`.

    Args:
        further: the number of columns that the caller appends to each row.
    """

    def __init__(self, further: int = 0) -> None:
        self._columns = len(COLUMNS) + further
        self._amounts: dict[int, tuple[Amounts, bytes]] = {}  # by id(); the key is held, so that no id is reused
        self._provenance: Provenance | None = None
        self._received_at = 0

    def rows(self, pending: Iterable[PendingRecord]) -> list[bytes]:
        """Return the encoded rows of records."""
        return list(map(self._row, pending))

    def _row(self, pending: PendingRecord) -> bytes:
        row = pending.row
        labels = _labels.get(id(row.labels))
        if labels is None:
            if len(_labels) >= KEPT_PARTS:
                _labels.clear()
            labels = _labels[id(row.labels)] = row.labels, _encode_labels(row.labels)
        amounts = self._amounts.get(id(row.amounts))
        if amounts is None:
            score_set = _NULL if pending.score_set is None else _int4(4, pending.score_set)
            amounts = self._amounts[id(row.amounts)] = row.amounts, _encode_amounts(row.amounts) + score_set
        if pending.provenance is not self._provenance:
            self._provenance = pending.provenance
            self._received_at = to_micros(pending.provenance.received_at) - _TO_2000
        record_id, document = row.record_id.encode(), row.document.encode()
        start, stop = row.start_time - _TO_2000, row.stop_time
        head = (self._columns, 8, start, 8, row.content, 8, self._received_at, 4, pending.source)
        if stop is None:
            begin = _open(*head, -1, -1, len(record_id))
        else:
            span = stop - row.start_time
            runtime = span // _SECOND if span >= 0 else -(-span // _SECOND)  # as Record.runtime, in a third of its time
            begin = _finished(*head, 8, stop - _TO_2000, 8, runtime, len(record_id))
        more = _TRUE if row.more else _NULL
        return b"".join((begin, record_id, more, amounts[1], labels[1], _length(len(document)), document))


_labels: Final[dict[int, tuple[Labels, bytes]]] = {}
"""Encoded labels by their ``id()``. The cache outlives a bulk, because the next one has many of the same labels."""


def int8(number: int | None) -> bytes:
    """Encode a field of type int8."""
    return _NULL if number is None else _int8(8, number)


def timestamptz(micros: int | None) -> bytes:
    """Encode a field of type timestamptz from microseconds since 1970."""
    return int8(None if micros is None else micros - _TO_2000)


def _int2_or_null(number: int | None) -> bytes:
    return _NULL if number is None else _int2(2, number)


def _text(text: str | None) -> bytes:
    return _NULL if text is None else _field(text.encode())


def _jsonb(text: msgspec.Raw) -> bytes:
    document = bytes(text)
    return _NULL if document == b"null" else _field(_JSONB_VERSION + document)


def _field(value: bytes) -> bytes:
    return _length(len(value)) + value


def _fields_of(part: Part) -> Callable[..., bytes]:
    encoded = [f"{each.type}({each.value})" for each in COLUMNS if each.part is part]
    types = {"smallint": _int2_or_null, "bigint": int8, "text": _text, "jsonb": _jsonb}
    return compile_function(f"b''.join(({', '.join(encoded)}))", part.value, **types)


_encode_labels: Final = _fields_of(Part.LABELS)
_encode_amounts: Final = _fields_of(Part.AMOUNTS)
