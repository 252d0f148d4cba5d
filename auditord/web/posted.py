"""Repeated members of posted records, which AUDITOR refuses, while msgspec takes the last one.

They are rare. So the members of a text are first counted by the quotation mark and colon that each of them has. The
text is parsed again only if there are more of these than the records have members.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from auditord_hookspecs import InvalidRecord, Record, RecordUpdate
from auditord_hookspecs.wire import decode_record

LARGEST_RECORD: Final = 2 << 20
"""AUDITOR's limit for the text of a record in bytes; a typical job has some hundred."""

_values: Final = msgspec.json.Decoder(list[msgspec.Raw])
_MEMBER: Final = b'":'
_IGNORED: Final = b'"runtime":'
_OPTIONAL: Final = (b'"start_time"', b'"stop_time"', b'"meta"')
_RECORD: Final = ("record_id", "start_time", "stop_time", "components", "meta")
_COMPONENT: Final = ("name", "amount", "scores")
_SCORE: Final = ("name", "value")


class _Object(list[tuple[str, Any]]):  # Any: JSON
    """The members of a JSON object, in the order of the text."""


def decode_posted(text: bytes) -> Record:
    """Decode a posted record.

    Raises:
        InvalidRecord: the text is not a record, is too large, or has a repeated member.
    """
    if len(text) > LARGEST_RECORD:
        raise InvalidRecord(f"the record has {len(text)} bytes, and at most {LARGEST_RECORD} are taken")
    record = decode_record(text)
    refuse_repeated(text, (record,))
    return record


def refuse_repeated(text: bytes, records: Sequence[Record | RecordUpdate]) -> None:
    """Raise if a record, component or score in a text has a repeated member; other objects may have them.

    Args:
        text: a record, or an array of records.
        records: the records decoded from it.

    Raises:
        InvalidRecord: a member is repeated; the message names it.
    """
    if _is_plain(text, records):  # nearly always
        return
    found: Any = _read(text)  # Any: JSON
    if isinstance(found, _Object):
        _refuse_in_record(found, "$")
    else:
        for at, each in enumerate(found):
            _refuse_in_record(each, f"$[{at}]")


def _is_plain(text: bytes, records: Sequence[Record | RecordUpdate]) -> bool:
    """Return whether a text has exactly as many members as its records, components and scores should have."""
    count = 0
    for record in records:
        if record.meta is None or record.stop_time is None or record.start_time is None:
            if len(records) > 1:
                return all(map(_is_plain, map(bytes, _values.decode(text)), zip(records)))
            if not _has_nulls(text, record):
                return False
        count += len(_RECORD) + len(record.meta or ()) + len(_COMPONENT) * len(record.components)
        for component in record.components:
            if component.scores:
                count += len(_SCORE) * len(component.scores)
    found = text.count(_MEMBER)
    return found == count or found == count + text.count(_IGNORED)


def _has_nulls(text: bytes, record: Record | RecordUpdate) -> bool:
    """Return whether the members that are None are in the text of a record; they may be omitted."""
    given = (record.start_time, record.stop_time, record.meta)
    return all(name in text for name, value in zip(_OPTIONAL, given, strict=True) if value is None)


def _read(text: bytes) -> Any:  # Any: JSON
    try:
        return json.loads(text, object_pairs_hook=_Object, parse_int=len)  # integers may have any number of digits
    except RecursionError as error:
        raise InvalidRecord("the JSON is nested too deeply") from error


def _refuse_in_record(record: _Object, place: str) -> None:
    _refuse(record, _RECORD, place)
    for at, component in enumerate(_last(record, "components")):
        _refuse(component, _COMPONENT, f"{place}.components[{at}]")
        for number, score in enumerate(_last(component, "scores")):
            _refuse(score, _SCORE, f"{place}.components[{at}].scores[{number}]")


def _refuse(found: _Object, names: Sequence[str], place: str) -> None:
    given = [name for name, _ in found]
    for name in names:
        if given.count(name) > 1:
            raise InvalidRecord(f"Object has the field `{name}` more than once - at `{place}`")


def _last(found: _Object, name: str) -> Sequence[_Object]:
    values: list[Sequence[_Object]] = [value for known, value in found if known == name]
    return values[-1]
