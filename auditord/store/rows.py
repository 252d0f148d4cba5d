"""A record as a row, whatever database keeps it: everything that can be computed before its writer has its turn."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Final, LiteralString, TypeAlias

import msgspec

from auditord.database.instants import EPOCH, MICROSECOND
from auditord.store.protocol import Duplicates, Provenance
from auditord.store.verdicts import Identity
from auditord_hookspecs import Component, InvalidRecord, Record
from auditord_hookspecs.records import MAX_AMOUNT, PROVENANCE_KEYS, USER_KEYS
from auditord_hookspecs.wire import encode_record, encode_records

META_COLUMNS: Final[Mapping[str, LiteralString]] = {"site_id": "site", "group_id": "user_group", "user_id": "user_name"}
"""Columns for the first value of meta keys; they are complete where ``more`` is not set."""

OLDER_KEYS: Final = frozenset({"site", "group", "user"})
"""The same keys in older records. ``more`` is set for every record that has one of them."""

AMOUNT_COLUMNS: Final[Mapping[str, LiteralString]] = {
    "Cores": "cores",
    "Memory": "memory",
    "GPU": "gpu",
    "TotalCPU": "total_cpu",
}
"""Columns for the amounts of components; the same."""

SMALL_AMOUNTS: Final = frozenset({"Cores", "GPU", "TotalCPU"})
"""Components that count things or seconds; of others, amounts may well be bytes."""

LONGEST_NAME: Final = 200
"""Characters of a principal or an agent that are kept: anybody can send a longer one."""


_ENCODED_TOGETHER: Final = 20
"""Records: more cost hardly less each, and each may have a megabyte, of which there are three copies meanwhile."""

_sorting_encoder: Final = msgspec.json.Encoder(order="sorted")

_Meta: TypeAlias = Mapping[str, Sequence[str]]
_Content: TypeAlias = tuple[_Meta, Sequence[Component]]


class RecordRow(msgspec.Struct, frozen=True, gc=False):
    """A record as all databases keep it; times are microseconds since 1970.

    Args:
        record_id: its id.
        start_time: of the run.
        stop_time: None while open.
        site: first value of the meta key; so are the next two.
        user_group: the same.
        user_name: the same.
        more: True if the columns for meta and amounts are incomplete.
        cores: the amount of the component, summed where its name occurs more than once; so are the next three.
        memory: the same.
        gpu: the same.
        total_cpu: the same.
        content: see :func:`content_hash`.
        document: the wire text.
    """

    record_id: str
    start_time: int
    stop_time: int | None
    site: str | None
    user_group: str | None
    user_name: str | None
    more: bool | None
    cores: int | None
    memory: int | None
    gpu: int | None
    total_cpu: int | None
    content: int
    document: str


class PendingRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to be stored.

    Args:
        record: as it came.
        row: the same as a row.
        provenance: who sent it, and when.
        duplicates: what it means if the id is known.
        forwarded: whether what becomes of it is put into the outbox.
        source: the number of the principal and the agent.
        score_set: the number of what its components score (:func:`auditord.store.sources.scores_text`), if any.
    """

    record: Record
    row: RecordRow
    provenance: Provenance
    duplicates: Duplicates
    forwarded: bool = False
    source: int = 0
    score_set: int | None = None

    @property
    def record_id(self) -> str:
        """The record's id."""
        return self.record.record_id

    @property
    def identity(self) -> Identity:
        """The properties on which the verdict depends."""
        row = self.row
        return Identity(row.start_time, row.stop_time, row.content, anonymous_hash(self.record))


def make_pending(
    record: Record,
    provenance: Provenance,
    duplicates: Duplicates,
    *,
    forwarded: bool = False,
    source: int = 0,
    score_set: int | None = None,
    text: bytes | None = None,
) -> PendingRecord:
    """Make the row of a record; its wire text is encoded where it is not given.

    Raises:
        InvalidRecord: it cannot be encoded, since it got around the checks of :class:`Record`.
    """
    return PendingRecord(record, _valid_row(record, text), provenance, duplicates, forwarded, source, score_set)


def make_many_pending(
    records: Sequence[Record],
    provenance: Provenance,
    duplicates: Duplicates,
    *,
    forwarded: bool,
    source: int,
    score_sets: Sequence[int | None],
) -> list[PendingRecord]:
    """Make many pending records, some of which are encoded together.

    Raises:
        InvalidRecord: see :func:`make_pending`; the text names one of them.
    """
    parts = (records[first : first + _ENCODED_TOGETHER] for first in range(0, len(records), _ENCODED_TOGETHER))
    rows = chain.from_iterable(map(_valid_rows, parts))
    return [
        PendingRecord(record, row, provenance, duplicates, forwarded, source, score_set)
        for record, row, score_set in zip(records, rows, score_sets, strict=True)
    ]


def _valid_rows(records: Sequence[Record]) -> Iterable[RecordRow]:
    try:
        return list(map(_make_row, records, _content_hashes(records), encode_records(records)))
    except (UnicodeError, OverflowError):  # which of them it is, the error does not say
        return map(_valid_row, records)


def _valid_row(record: Record, text: bytes | None = None) -> RecordRow:
    try:
        return make_row(record, text)
    except (UnicodeError, OverflowError) as error:
        raise InvalidRecord(f"The record {record.record_id!r} cannot be stored: {error}.") from error


def content_hash(record: Record) -> int:
    """A signed 64-bit number that is equal for equal meta and components; times are compared beside it.

    The order of meta keys does not count, ``null`` meta is ``{}``, scores are floats, and meta keys that only say who
    made the record are left out.
    """
    return _digest(_sorting_encoder.encode(_content(record)))


def _content_hashes(records: Iterable[Record]) -> list[int]:
    lines = _sorting_encoder.encode_lines([_content(record) for record in records])
    return [_digest(line) for line in lines.split(b"\n")[:-1]]  # JSON escapes line feeds


def anonymous_hash(record: Record) -> int | None:
    """The content hash without the keys that name a user; None if the record has none of them."""
    if record.meta is None or USER_KEYS.isdisjoint(record.meta):
        return None
    return _digest(_sorting_encoder.encode(_content(record, PROVENANCE_KEYS | USER_KEYS)))


def _content(record: Record, without: frozenset[str] = PROVENANCE_KEYS) -> _Content:
    meta = record.meta or {}
    if not without.isdisjoint(meta):
        meta = {key: values for key, values in meta.items() if key not in without}
    return meta, record.components


def _digest(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big", signed=True)


def make_row(record: Record, text: bytes | None = None) -> RecordRow:
    """The row of a record; its wire text is encoded where it is not given."""
    return _make_row(record, content_hash(record), text or encode_record(record))


def _make_row(record: Record, content: int, text: bytes) -> RecordRow:
    meta, stop = record.meta or {}, record.stop_time
    site, more_sites = _dimension(meta, "site_id", "site")
    group, more_groups = _dimension(meta, "group_id", "group")
    user, more_users = _dimension(meta, "user_id", "user")
    cores, memory, gpu, total_cpu, several = _amounts(record.components)
    return RecordRow(
        record.record_id,
        (record.start_time - EPOCH) // MICROSECOND,
        None if stop is None else (stop - EPOCH) // MICROSECOND,
        site, group, user, True if more_sites or more_groups or more_users or several else None,
        cores, memory, gpu, total_cpu,
        content,
        text.decode(),
    )  # fmt: skip


def _dimension(meta: _Meta, key: str, otherwise: str) -> tuple[str | None, bool]:
    values = meta.get(key)
    if values is not None and len(values) == 1 and otherwise not in meta:
        return values[0], False  # as nearly always
    found = values if values is not None else meta.get(otherwise)
    return (found[0] if found else None), found is not None


def _amounts(components: Sequence[Component]) -> tuple[int | None, int | None, int | None, int | None, bool]:
    amounts = {component.name: component.amount for component in components}
    several = len(amounts) < len(components)
    if several:
        amounts = _sums(components)
    return amounts.get("Cores"), amounts.get("Memory"), amounts.get("GPU"), amounts.get("TotalCPU"), several


def _sums(components: Sequence[Component]) -> dict[str, int]:
    sums = dict.fromkeys((component.name for component in components), 0)
    for component in components:
        # Each amount fits 63 bits, the sum of several may not.
        sums[component.name] = min(sums[component.name] + component.amount, MAX_AMOUNT)
    return sums
