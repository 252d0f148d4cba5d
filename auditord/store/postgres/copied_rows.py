"""Encode rows of the table of records in PostgreSQL's binary COPY format (documented under COPY, Binary Format).

Parts that many rows share are encoded once. In this format, a timestamptz is an int8, and jsonb is its text after a
version number.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from struct import Struct
from typing import Final, TypeAlias

import msgspec

from auditord.database.instants import EPOCH, MICROSECOND, to_micros
from auditord.store.columns import COLUMNS, Part, compile_function
from auditord.store.rows import Amounts, Bulk, Labels, PendingRecord, hash_parts
from auditord_hookspecs import Provenance, Record
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

# For a finished and an open record: the number of columns; start_time, content, received_at, origin_id, stop_time and
# runtime, each after its length; and the length of record_id.
_finished: Final = Struct(">hiqiqiqiiiqiqi").pack
_open: Final = Struct(">hiqiqiqiiiii").pack
_length: Final = Struct(">i").pack
_int2: Final = Struct(">ih").pack
_int4: Final = Struct(">ii").pack
_int8: Final = Struct(">iq").pack

_Fields: TypeAlias = tuple[
    str, int, int | None, int, Labels, Amounts, int | None, int, Provenance, str
]  # record_id, start_time, stop_time, content, labels, amounts, score_set, origin_id, provenance, document


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

    def pending_rows(self, pending: Iterable[PendingRecord]) -> list[bytes]:
        """Return the encoded rows of records that may have different origins."""
        return self._rows(
            (
                each.record_id,
                row.start_time,
                row.stop_time,
                row.content,
                row.labels,
                row.amounts,
                each.score_set,
                each.origin,
                each.provenance,
                row.document,
            )
            for each in pending
            for row in (each.row,)
        )

    def bulk_rows(self, bulk: Bulk, records: Sequence[Record]) -> list[bytes]:
        """Return the encoded rows of some records of a bulk.

        A :class:`PendingRecord` of each would take half as long again.
        """
        origin, provenance, encoded = bulk.origin, bulk.provenance, bulk.encode(records)
        return self._rows(
            (
                record.record_id,
                (record.start_time - EPOCH) // MICROSECOND,
                None if record.stop_time is None else (record.stop_time - EPOCH) // MICROSECOND,
                hash_parts(labels.compared, amounts.compared),
                labels,
                amounts,
                score_set,
                origin,
                provenance,
                text,
            )
            for record, labels, amounts, score_set, text in zip(records, *encoded, strict=True)
        )

    def _rows(self, fields: Iterable[_Fields]) -> list[bytes]:
        rows: list[bytes] = []
        columns, known_amounts = self._columns, self._amounts
        for text_id, start, stop, content, labels, amounts, score_set, origin, provenance, text in fields:
            shared_labels = _labels.get(id(labels))
            if shared_labels is None:
                if len(_labels) >= KEPT_PARTS:
                    _labels.clear()
                shared_labels = _labels[id(labels)] = labels, _encode_labels(labels)
            shared_amounts = known_amounts.get(id(amounts))
            if shared_amounts is None:
                encoded = _encode_amounts(amounts) + (_NULL if score_set is None else _int4(4, score_set))
                shared_amounts = known_amounts[id(amounts)] = amounts, encoded
            if provenance is not self._provenance:
                self._provenance = provenance
                self._received_at = to_micros(provenance.received_at) - _TO_2000
            record_id, document = text_id.encode(), text.encode()
            begun, received_at = start - _TO_2000, self._received_at
            if stop is None:
                begin = _open(columns, 8, begun, 8, content, 8, received_at, 4, origin, -1, -1, len(record_id))
            else:
                span = stop - start
                runtime = span // _SECOND if span >= 0 else -(-span // _SECOND)  # a third of Record.runtime's time
                begin = _finished(
                    columns, 8, begun, 8, content, 8, received_at, 4, origin, 8, stop - _TO_2000, 8, runtime,
                    len(record_id),
                )  # fmt: skip
            more = _TRUE if labels.more or amounts.more else _NULL
            rows.append(
                b"".join(
                    (begin, record_id, more, shared_amounts[1], shared_labels[1], _length(len(document)), document)
                )
            )
        return rows


_labels: Final[dict[int, tuple[Labels, bytes]]] = {}
"""Encoded labels by their ``id()``. The cache outlives a bulk, because the next one has many of the same labels."""


def timestamptz(micros: int | None) -> bytes:
    """Encode a field of type timestamptz from microseconds since 1970."""
    return _NULL if micros is None else _int8(8, micros - _TO_2000)


def _text(text: str | None) -> bytes:
    return _NULL if text is None else _field(text.encode())


def _jsonb(text: msgspec.Raw) -> bytes:
    document = bytes(text)
    return _NULL if document == b"null" else _field(_JSONB_VERSION + document)


def _field(value: bytes) -> bytes:
    return _length(len(value)) + value


_ENCODED: Final = {
    "smallint": "(null if {0} is None else int2(2, {0}))",
    "bigint": "(null if {0} is None else int8(8, {0}))",
    "text": "text({0})",
    "jsonb": "jsonb({0})",
}
"""Expressions for a field. Integers need no call, since components with a CPU time are encoded for every record."""


def _fields_of(part: Part) -> Callable[..., bytes]:
    encoded = [_ENCODED[each.type].format(each.value) for each in COLUMNS if each.part is part]
    names = {"null": _NULL, "int2": _int2, "int8": _int8, "text": _text, "jsonb": _jsonb}
    return compile_function(f"b''.join(({', '.join(encoded)}))", part.value, **names)


_encode_labels: Final = _fields_of(Part.LABELS)
_encode_amounts: Final = _fields_of(Part.AMOUNTS)
