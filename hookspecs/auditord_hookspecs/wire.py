"""AUDITOR's JSON for records: decoding of requests, and encoding of answers.

Decoding follows AUDITOR 0.11: unknown members are ignored, and times are relaxed RFC 3339 with a mandatory zone,
truncated to microseconds. There is one deviation: if a member is duplicated, the last one counts. The API refuses a
POST with duplicates before it is decoded, as AUDITOR does.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

import msgspec

from auditord_hookspecs.errors import InvalidRecord
from auditord_hookspecs.records import Component, Meta, Name, Record, RecordUpdate, in_utc, runtime_seconds

T = TypeVar("T")

MAX_CLIENT_OBJECT_BYTES: Final = 10_000
"""The largest object that AUDITOR's asynchronous client accepts; with a larger one, it gives up on the whole answer."""


class _Offered(msgspec.Struct, gc=False):
    """A record of an array, with components and meta still encoded."""

    record_id: Name
    start_time: datetime
    components: msgspec.Raw
    stop_time: datetime | None = None
    meta: msgspec.Raw = msgspec.Raw(b"null")


class _OfferedAlone(msgspec.Struct, gc=False):
    """A record whose components are still encoded, since many records have the same ones."""

    record_id: Name
    start_time: datetime
    components: msgspec.Raw
    stop_time: datetime | None = None
    meta: Meta | None = None


_record_decoder = msgspec.json.Decoder(Record)
_records_decoder = msgspec.json.Decoder(list[Record])
_offered_decoder = msgspec.json.Decoder(list[_Offered])
_alone_decoder = msgspec.json.Decoder(_OfferedAlone)
_components_decoder = msgspec.json.Decoder(tuple[Component, ...])
_meta_decoder: msgspec.json.Decoder[Meta | None] = msgspec.json.Decoder(Meta | None)
_update_decoder = msgspec.json.Decoder(RecordUpdate)
_encoder = msgspec.json.Encoder()

_LEAP_SECOND: Final = 60

_FAULTS: Final = (InvalidRecord, msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# msgspec rounds nanoseconds, but the contract truncates them. Such a body is decoded again with our own times.
_finer_than_microseconds = re.compile(rb"\.\d{7}")
_relaxed_time = re.compile(
    r"\s*(\d{1,4})\s*-\s*(\d{1,2})\s*-\s*(\d{1,2})(?:\s*[Tt]\s*|\s+)"
    r"(\d{1,2})\s*:\s*(\d{1,2})\s*:\s*(\d{1,2})(?:\.(\d+))?"
    r"\s*(?:[Zz]|[Uu][Tt][Cc]|([+-])(\d{2})\s*:?\s*(\d{2}))\s*",
    re.ASCII,
)


KEPT_PARTS: Final = 2_048
"""The size of the caches of decoded meta and components. The next body often has jobs of the same users."""

LONGEST_KEPT: Final = 500
"""The longest text in these caches, in bytes."""

_kept_meta = lru_cache(KEPT_PARTS)(_meta_decoder.decode)
_kept_components = lru_cache(KEPT_PARTS)(_components_decoder.decode)


def decode_meta(text: bytes) -> Meta | None:
    """Decode the meta of a record into a new dictionary."""
    if len(text) > LONGEST_KEPT:
        return _meta_decoder.decode(text)
    meta = _kept_meta(text)
    return meta and dict(meta)


def decode_components(text: bytes) -> tuple[Component, ...]:
    """Decode the components of a record. Equal texts usually give the same object."""
    return _kept_components(text) if len(text) <= LONGEST_KEPT else _components_decoder.decode(text)


def decode_record(body: bytes) -> Record:
    """Decode a record from one JSON object.

    Raises:
        InvalidRecord: the message has the reason and the JSON path of the member.
    """
    if not _finer_than_microseconds.search(body):
        try:
            found = _alone_decoder.decode(body)
            components = decode_components(bytes(found.components))
            return Record(found.record_id, found.start_time, components, found.stop_time, found.meta)
        except _FAULTS:
            pass
    return _decode(body, _record_decoder)


class _ByText(dict[bytes, T]):
    """Some thousand decoded values by their texts. A text is usually decoded once."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        super().__init__()
        self._decode = decode

    def __missing__(self, text: bytes) -> T:
        if len(self) >= KEPT_PARTS:
            self.clear()
        self[text] = value = self._decode(text)
        return value


class SharedParts:
    """The decoded components and meta of many records. Equal texts share one value.

    Jobs of one user often have the same meta, and jobs of one shape the same components. Shared values are encoded
    and hashed only once as well.
    """

    def __init__(self) -> None:
        self._components = _ByText(decode_components)
        self._meta = _ByText(decode_meta)

    def decode(self, body: bytes) -> list[Record]:
        """Decode the records of an array. Errors do not name the position in the array."""
        components, meta = self._components, self._meta
        return [
            Record(
                each.record_id,
                each.start_time,
                components[bytes(each.components)],
                each.stop_time,
                meta[bytes(each.meta)],
            )
            for each in _offered_decoder.decode(body)
        ]


def decode_records(body: bytes, shared: SharedParts | None = None) -> list[Record]:
    """Decode records from a JSON array. As in AUDITOR, one invalid element makes the whole array invalid.

    Args:
        body: the array.
        shared: components and meta to share with the records of other arrays.

    Raises:
        InvalidRecord: the message has the reason and the JSON path, which includes the position in the array.
    """
    if not _finer_than_microseconds.search(body):
        with suppress(*_FAULTS):
            return (shared or SharedParts()).decode(body)
    return _decode(body, _records_decoder)


def decode_update(body: bytes) -> RecordUpdate:
    """Decode an update from one JSON object in the form of a record.

    Raises:
        InvalidRecord: also if ``components`` or ``stop_time`` is missing or null.
    """
    return _decode(body, _update_decoder)


def _decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        if not _finer_than_microseconds.search(body):
            return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if "Invalid RFC3339" not in str(error):
            raise InvalidRecord(str(error)) from error
    try:
        document: Any = msgspec.json.decode(body)
        for record in document if isinstance(document, list) else (document,):  # pyright: ignore[reportUnknownVariableType]
            if isinstance(record, dict):
                members = cast("dict[str, Any]", record)  # keys of JSON objects are strings
                for member in ("start_time", "stop_time"):
                    if isinstance(members.get(member), str):
                        members[member] = parse_time(members[member])
        record_or_records: T = msgspec.convert(document, decoder.type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecord(str(error)) from error
    return record_or_records


def parse_time(text: str) -> datetime:
    """Parse relaxed RFC 3339 into an instant in UTC, truncated to microseconds.

    Accepts ``T``, ``t`` or blanks between date and time, unpadded fields, ``Z``, ``UTC``, ``+HH:MM`` and ``+HHMM``. A
    leap second (of any minute) becomes the first second of the next minute, as in AUDITOR's database.

    Raises:
        InvalidRecord: the text is not such a time, or has no zone.
    """
    match = _relaxed_time.fullmatch(text)
    if match is None:
        raise InvalidRecord(f"Parsing '{text[:60]}' failed: expected a time with zone such as 2024-02-03T04:05:06Z")
    *fields, second, fraction, sign, hours, minutes = match.groups()
    offset = timedelta(hours=int(hours), minutes=int(minutes)) if sign else timedelta()
    leap = timedelta(seconds=1 if int(second) == _LEAP_SECOND else 0)
    try:
        zone = timezone(-offset if sign == "-" else offset)
        micros = int((fraction or "0")[:6].ljust(6, "0"))
        year, month, day, hour, minute = map(int, fields)
        moment = datetime(year, month, day, hour, minute, int(second) - leap.seconds, micros, zone)
        return (moment if zone is UTC else in_utc(moment)) + leap
    except InvalidRecord:  # a ValueError, which already names the time
        raise
    except (ValueError, OverflowError) as error:
        raise InvalidRecord(f"Parsing '{text[:60]}' failed: {error}") from error


def format_time(moment: datetime) -> str:
    """Format an instant as AUDITOR does: UTC with ``Z`` and the shortest exact form of 0, 3 or 6 decimals."""
    text = (moment if moment.tzinfo is UTC else moment.astimezone(UTC)).isoformat()  # with +00:00
    micros = moment.microsecond
    if not micros:
        return text[:19] + "Z"
    return (text[:26] if micros % 1000 else text[:23]) + "Z"


class _WireRecord(msgspec.Struct, gc=False):
    """The members of an encoded record, in the contract's order."""

    record_id: str
    meta: Meta | msgspec.Raw | None
    components: tuple[Component, ...] | msgspec.Raw
    start_time: datetime | str
    stop_time: datetime | str | None
    runtime: int | None


def encode_record(record: Record) -> bytes:
    r"""Encode a record for clients: one compact JSON object in UTF-8, with backslashes as ``\u005c``.

    AUDITOR's asynchronous client misreads a string that ends in an escaped backslash; ``\u005c`` is safe.
    """
    return _safe(_encoder.encode(_on_the_wire(record, record.meta, record.components)))


def encode_with(record: Record, meta: msgspec.Raw, components: msgspec.Raw) -> bytes:
    """Encode a record whose meta and components are already encoded (:func:`encode_part`)."""
    return _safe(_encoder.encode(_on_the_wire(record, meta, components)))


def encode_records(
    records: Iterable[Record], meta: Iterable[msgspec.Raw], components: Iterable[msgspec.Raw]
) -> list[str]:
    """Encode many records, which takes a third of the time per record.

    Args:
        records: the records.
        meta: the encoded meta of each record (:func:`encode_part`), which many records may share.
        components: the encoded components of each record, likewise.
    """
    lines = _safe(_encoder.encode_lines(list(map(_on_the_wire, records, meta, components))))
    return lines.decode().split("\n")[:-1]  # JSON escapes line feeds


def encode_part(part: Meta | Sequence[Component] | None) -> bytes:
    """Encode the meta or the components of a record."""
    return _encoder.encode(part)


def _safe(text: bytes) -> bytes:
    return text.replace(b"\\\\", b"\\u005c") if b"\\" in text else text


def _on_the_wire(
    record: Record, meta: Meta | msgspec.Raw | None, components: tuple[Component, ...] | msgspec.Raw
) -> _WireRecord:
    start, stop = record.start_time, record.stop_time
    # Most times are whole seconds, and this runs for every record.
    return _WireRecord(
        record.record_id,
        meta,
        components,
        _exact(start) if start.microsecond else start,
        _exact(stop) if stop is not None and stop.microsecond else stop,
        None if stop is None else runtime_seconds(start, stop),
    )


def _exact(moment: datetime) -> datetime | str:
    """Write whole milliseconds with the three digits that the contract requires. Leave other times to msgspec."""
    return moment if moment.microsecond % 1000 else format_time(moment)
