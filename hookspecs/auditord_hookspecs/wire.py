"""AUDITOR's JSON for records: decoding what clients send, encoding what they read.

Decoding follows AUDITOR 0.11: unknown members are ignored, times are relaxed RFC 3339 with a mandatory zone and are
truncated to microseconds. One deviation: of a duplicated member the last one counts; the API refuses a post
with duplicates before, as AUDITOR does.
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
"""Above this size of one object AUDITOR's asynchronous client gives up on the whole answer."""


class _Offered(msgspec.Struct, gc=False):
    """A record of an array, with components and meta as texts."""

    record_id: Name
    start_time: datetime
    components: msgspec.Raw
    stop_time: datetime | None = None
    meta: msgspec.Raw = msgspec.Raw(b"null")


class _OfferedAlone(msgspec.Struct, gc=False):
    """A record with components as a text, which many records have in common."""

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

# msgspec rounds nanoseconds where the contract truncates: such a body is decoded again with our own times.
_finer_than_microseconds = re.compile(rb"\.\d{7}")
_relaxed_time = re.compile(
    r"\s*(\d{1,4})\s*-\s*(\d{1,2})\s*-\s*(\d{1,2})(?:\s*[Tt]\s*|\s+)"
    r"(\d{1,2})\s*:\s*(\d{1,2})\s*:\s*(\d{1,2})(?:\.(\d+))?"
    r"\s*(?:[Zz]|[Uu][Tt][Cc]|([+-])(\d{2})\s*:?\s*(\d{2}))\s*",
    re.ASCII,
)


KEPT_PARTS: Final = 4_096
"""Texts of meta, and of components, whose values are kept for the next body, which has jobs of the same users."""

LONGEST_KEPT: Final = 500
"""Bytes of such a text."""

_kept_meta = lru_cache(KEPT_PARTS)(_meta_decoder.decode)
_kept_components = lru_cache(KEPT_PARTS)(_components_decoder.decode)


def decode_meta(text: bytes) -> Meta | None:
    """Decode the meta of a record into a new dictionary."""
    if len(text) > LONGEST_KEPT:
        return _meta_decoder.decode(text)
    meta = _kept_meta(text)
    return meta and dict(meta)


def decode_components(text: bytes) -> tuple[Component, ...]:
    """Decode the components of a record; equal texts nearly always give the same value."""
    return _kept_components(text) if len(text) <= LONGEST_KEPT else _components_decoder.decode(text)


def decode_record(body: bytes) -> Record:
    """Return a record from one JSON object.

    Raises:
        InvalidRecord: with the reason and the JSON path of the member.
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
    """Values by their texts. Each text is decoded once."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        super().__init__()
        self._decode = decode

    def __missing__(self, text: bytes) -> T:
        self[text] = value = self._decode(text)
        return value


class SharedParts:
    """The components and the meta of many records, by their texts.

    Jobs of one user have the same meta, and jobs of one shape the same components. Equal texts share one value.
    """

    def __init__(self) -> None:
        self._components = _ByText(decode_components)
        self._meta = _ByText(decode_meta)

    @property
    def longest(self) -> int:
        """Bytes that both texts of a record have at most; 0 if there were none."""
        return max(map(len, self._components), default=0) + max(map(len, self._meta), default=0)

    def decode(self, body: bytes) -> list[Record]:
        """Return the records of an array; what it raises does not say where in the array."""
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
    """Decode records from a JSON array; one bad element refuses the whole array, as in AUDITOR.

    Args:
        body: the array.
        shared: what they may share with the records of other arrays.

    Raises:
        InvalidRecord: with the reason and the JSON path, which names the position in the array.
    """
    if not _finer_than_microseconds.search(body):
        with suppress(*_FAULTS):
            return (shared or SharedParts()).decode(body)
    return _decode(body, _records_decoder)


def decode_update(body: bytes) -> RecordUpdate:
    """Return an update from one JSON object of a record's shape.

    Raises:
        InvalidRecord: also when ``components`` or ``stop_time`` is missing or null.
    """
    return _decode(body, _update_decoder)


def _decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        if not _finer_than_microseconds.search(body):
            return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if "Invalid RFC3339" not in str(error):
            raise InvalidRecord(str(error)) from error
    return _decode_with_own_times(body, decoder)


def _decode_with_own_times(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        document: Any = msgspec.json.decode(body)
        for record in document if isinstance(document, list) else (document,):  # pyright: ignore[reportUnknownVariableType]
            _replace_times(record)
        record_or_records: T = msgspec.convert(document, decoder.type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecord(str(error)) from error
    return record_or_records


def _replace_times(record: Any) -> None:  # Any: JSON that no type has been checked against yet
    if not isinstance(record, dict):
        return
    members = cast("dict[str, Any]", record)  # JSON's keys are texts
    for member in ("start_time", "stop_time"):
        if isinstance(members.get(member), str):
            members[member] = parse_time(members[member])


def parse_time(text: str) -> datetime:
    """Return an instant from relaxed RFC 3339, in UTC and truncated to microseconds.

    ``T``, ``t`` or blanks between date and time, unpadded fields, ``Z``, ``UTC``, ``+HH:MM`` or ``+HHMM``. A leap
    second (of any minute) is the first second of the next one, as AUDITOR's database keeps it.

    Raises:
        InvalidRecord: the text is no such time, or has no zone.
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
    """The members of an answered record, in the contract's order."""

    record_id: str
    meta: Meta | msgspec.Raw | None
    components: tuple[Component, ...] | msgspec.Raw
    start_time: datetime | str
    stop_time: datetime | str | None
    runtime: int | None


def encode_record(record: Record) -> bytes:
    r"""Return a record as clients read it: one compact JSON object, raw UTF-8, backslashes as ``\u005c``.

    AUDITOR's asynchronous client loses track of a string that ends in an escaped backslash; ``\u005c`` is safe.
    """
    return _safe(_encoder.encode(_on_the_wire(record, record.meta, record.components)))


def encode_with(record: Record, meta: msgspec.Raw, components: msgspec.Raw) -> bytes:
    """Return the wire text of a record, given those of its meta and its components (:func:`encode_part`)."""
    return _safe(_encoder.encode(_on_the_wire(record, meta, components)))


def encode_records(
    records: Iterable[Record], meta: Iterable[msgspec.Raw], components: Iterable[msgspec.Raw]
) -> list[str]:
    """Return the wire texts of many records, which costs a third for each.

    Args:
        records: of any number.
        meta: the meta of each, encoded (:func:`encode_part`): many may have the same.
        components: its components, likewise.
    """
    lines = _safe(_encoder.encode_lines(list(map(_on_the_wire, records, meta, components))))
    return lines.decode().split("\n")[:-1]  # JSON escapes line feeds


def encode_part(part: Meta | Sequence[Component] | None) -> bytes:
    """Return the meta or the components of a record."""
    return _encoder.encode(part)


def _safe(text: bytes) -> bytes:
    return text.replace(b"\\\\", b"\\u005c") if b"\\" in text else text


def _on_the_wire(
    record: Record, meta: Meta | msgspec.Raw | None, components: tuple[Component, ...] | msgspec.Raw
) -> _WireRecord:
    start, stop = record.start_time, record.stop_time
    return _WireRecord(
        record.record_id,
        meta,
        components,
        format_time(start) if _is_whole_milliseconds(start) else start,
        format_time(stop) if stop is not None and _is_whole_milliseconds(stop) else stop,
        None if stop is None else runtime_seconds(start, stop),
    )


def _is_whole_milliseconds(moment: datetime) -> bool:
    """Tell a time for which the contract wants a fraction of three digits; others msgspec writes well, and fast."""
    micros = moment.microsecond
    return micros != 0 and micros % 1000 == 0
