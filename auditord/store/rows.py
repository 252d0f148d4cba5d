"""Records as database rows: everything that can be computed before the write transaction."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final

import msgspec

from auditord.database.instants import EPOCH, MICROSECOND
from auditord.duplicates import Duplicates
from auditord.store.columns import AMOUNT_COLUMNS, OLDER_KEYS
from auditord_hookspecs import Component, InvalidRecord, Provenance, Record
from auditord_hookspecs.records import MAX_AMOUNT, PROVENANCE_KEYS, USER_KEYS, Meta
from auditord_hookspecs.vocabulary import HELD
from auditord_hookspecs.wire import KEPT_PARTS, LONGEST_KEPT, encode_part, encode_records, encode_with

SMALL_AMOUNTS: Final = frozenset({"Cores", "GPU", "TotalCPU"})
"""Components that count things or seconds. Amounts of others may be bytes."""

TOO_LARGE: Final = 1 << 43
"""In SQLite, roll-up cells leave out records with an amount this large: a sum of a million of them might overflow.

Cells sum the totals of held amounts in two parts, so these may be larger.
"""

LONGEST_NAME: Final = 200
"""The number of characters kept of a principal or an agent, since clients can send any length."""


_ENCODED_TOGETHER: Final = 20
"""Records per call. More would hardly be cheaper, and a call holds three copies of each record (up to a megabyte)."""

_encoder: Final = msgspec.json.Encoder()
_sorting_encoder: Final = msgspec.json.Encoder(order="sorted")
_decode_meta: Final = msgspec.json.Decoder(dict[str, tuple[str, ...]] | None).decode
_as_signed: Final = Struct(">q").unpack


class Labels(msgspec.Struct, frozen=True, gc=False):
    """The columns that depend only on meta, shared by rows whose records have the same meta.

    Args:
        site: the first value under ``site_id`` or its older name; ``user_group`` and ``user_name`` likewise.
        more: whether these columns are incomplete.
        compared: the part of meta that goes into :func:`content_hash`, as JSON.
        text: the wire text of meta.
    """

    meta: Meta | None
    site: str | None
    user_group: str | None
    user_name: str | None
    more: bool
    compared: bytes
    text: msgspec.Raw


class Amounts(msgspec.Struct, frozen=True, gc=False):
    """The columns that depend only on components, shared by rows whose records have the same components.

    Args:
        cores: the amount of the component, summed if its name occurs more than once; likewise the next six.
        others: 1 if there are components with other names, 2 if an amount is too large for roll-ups, else None.
        more: whether amounts were summed.
        compared: the components as JSON, for :func:`content_hash`.
        text: the wire text of components.
        scores: the scores of the components; see :func:`scores_text`.
    """

    components: Sequence[Component]
    cores: int | None
    memory: int | None
    gpu: int | None
    total_cpu: int | None
    core_seconds: int | None
    memory_seconds: int | None
    gpu_seconds: int | None
    others: int | None
    more: bool
    compared: bytes
    text: msgspec.Raw
    scores: str | None


class RecordRow(msgspec.Struct, frozen=True, gc=False):
    """The columns of a record in any database. Times are microseconds since 1970.

    Args:
        stop_time: None while open.
        more: True if labels or amounts are incomplete, else None.
        content: see :func:`content_hash`.
        document: the wire text.
    """

    start_time: int
    stop_time: int | None
    labels: Labels
    amounts: Amounts
    more: bool | None
    record_id: str
    content: int
    document: str


@dataclass(frozen=True, slots=True)
class Identity:
    """The properties that tell whether two records with the same id are the same run, and whether they are equal.

    Args:
        start: microseconds since 1970 in UTC.
        stop: the same, or None while open.
        content: see :func:`content_hash`.
        anonymous: see :func:`anonymous_hash`; only set for new records.
    """

    start: int
    stop: int | None
    content: int
    anonymous: int | None = field(default=None, compare=False)


class PendingRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to be stored.

    Args:
        duplicates: what to do if the id is already stored.
        origin: the number of the principal and the agent.
        score_set: the number of its set of scores (:func:`scores_text`), if any.
    """

    record: Record
    row: RecordRow
    provenance: Provenance
    duplicates: Duplicates
    origin: int = 0
    score_set: int | None = None

    @property
    def record_id(self) -> str:
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
    origin: int = 0,
    score_set: int | None = None,
    text: bytes | None = None,
) -> PendingRecord:
    """Make the row of a record, encoding its wire text unless ``text`` is given.

    Raises:
        InvalidRecord: the record cannot be encoded, because it bypassed the checks of :class:`Record`.
    """
    return PendingRecord(record, valid_row(record, text), provenance, duplicates, origin, score_set)


def valid_row(record: Record, text: bytes | None = None) -> RecordRow:
    """Return the row of a record.

    Raises:
        InvalidRecord: see :func:`make_pending`.
    """
    try:
        return make_row(record, text)
    except (UnicodeError, OverflowError) as error:
        raise InvalidRecord(f"The record {record.record_id!r} cannot be stored: {error}.") from error


def content_hash(record: Record) -> int:
    """Return a signed 64-bit hash of meta and components. Times are not part of it; they are compared separately.

    The order of meta keys does not matter, ``null`` meta equals ``{}``, scores are floats, and meta keys that only say
    who made the record are left out.
    """
    return hash_parts(_encode_compared(record.meta), _sorting_encoder.encode(record.components))


def anonymous_hash(record: Record) -> int | None:
    """Return the content hash without the keys that name a user, or None if the record has no such key."""
    if record.meta is None or USER_KEYS.isdisjoint(record.meta):
        return None
    meta = _encode_compared(record.meta, PROVENANCE_KEYS | USER_KEYS)
    return hash_parts(meta, _sorting_encoder.encode(record.components))


def _encode_compared(meta: Meta | None, without: frozenset[str] = PROVENANCE_KEYS) -> bytes:
    compared = meta or {}
    if not without.isdisjoint(compared):
        compared = {key: values for key, values in compared.items() if key not in without}
    return _sorting_encoder.encode(compared)


@lru_cache(KEPT_PARTS)
def hash_parts(meta: bytes, components: bytes) -> int:
    """Return the content hash from the parts that are compared (:class:`Labels`, :class:`Amounts`)."""
    # A JSON array of both, since stored hashes were made from that.
    number: int
    (number,) = _as_signed(blake2b(b"[%b,%b]" % (meta, components), digest_size=8).digest())
    return number


def make_row(record: Record, text: bytes | None = None) -> RecordRow:
    """Return the row of a record, encoding its wire text unless ``text`` is given."""
    labels, amounts = _labels(record.meta, encode_part(record.meta)), amounts_of(record.components)
    document = encode_with(record, labels.text, amounts.text) if text is None else text
    return _row(record, labels, amounts, document.decode())


def _row(record: Record, labels: Labels, amounts: Amounts, document: str) -> RecordRow:
    start, stop = (record.start_time - EPOCH) // MICROSECOND, record.stop_time
    stop_time = None if stop is None else (stop - EPOCH) // MICROSECOND
    more = True if labels.more or amounts.more else None
    content = hash_parts(labels.compared, amounts.compared)
    return RecordRow(start, stop_time, labels, amounts, more, record.record_id, content, document)


def _labels_of_text(text: bytes) -> Labels:
    return _labels(_decode_meta(text), text)  # decoded again, since the caller could change its dictionary


_kept_labels = lru_cache(KEPT_PARTS)(_labels_of_text)


def _labels(meta: Meta | None, text: bytes) -> Labels:
    known, compared, raw = meta or {}, _encode_compared(meta), msgspec.Raw(text)
    sites, groups, users = known.get("site_id"), known.get("group_id"), known.get("user_id")
    if sites and groups and users and len(sites) == len(groups) == len(users) == 1 and OLDER_KEYS.isdisjoint(known):
        return Labels(meta, sites[0], groups[0], users[0], False, compared, raw)  # noqa: FBT003 the usual case
    site, more_sites = _dimension(known, "site_id", "site")
    group, more_groups = _dimension(known, "group_id", "group")
    user, more_users = _dimension(known, "user_id", "user")
    return Labels(meta, site, group, user, more_sites or more_groups or more_users, compared, raw)


def _dimension(meta: Meta, key: str, otherwise: str) -> tuple[str | None, bool]:
    values = meta.get(key)
    if values is not None and len(values) == 1 and otherwise not in meta:
        return values[0], False  # the usual case
    found = values if values is not None else meta.get(otherwise)
    return (found[0] if found else None), found is not None


_kept_amounts: Final[dict[int, Amounts]] = {}
"""Amounts by the ``id()`` of their components, which they hold, so that no id is reused."""


def amounts_of(components: Sequence[Component]) -> Amounts:
    """Return the columns that depend on components, cached by their identity unless the components are long."""
    known = _kept_amounts.get(id(components))
    if known is not None:
        return known
    found = {component.name: component.amount for component in components}
    several = len(found) < len(components)
    if several:
        found = dict.fromkeys(found, 0)
        for component in components:
            # Each amount fits 63 bits, but their sum may not.
            found[component.name] = min(found[component.name] + component.amount, MAX_AMOUNT)
    others = None if found.keys() <= AMOUNT_COLUMNS.keys() else 1
    if max(found.values(), default=0) >= TOO_LARGE and any(
        amount >= TOO_LARGE for name, amount in found.items() if name not in HELD
    ):
        others = 2
    amounts = Amounts(
        components, found.get("Cores"), found.get("Memory"), found.get("GPU"), found.get("TotalCPU"),
        found.get("CoreSeconds"), found.get("MemorySeconds"), found.get("GPUSeconds"), others, several,
        _sorting_encoder.encode(components), msgspec.Raw(encode_part(components)), scores_text(components),
    )  # fmt: skip
    if len(amounts.compared) <= LONGEST_KEPT and isinstance(components, tuple):  # the caller could change a list
        if len(_kept_amounts) >= KEPT_PARTS:
            _kept_amounts.clear()
        _kept_amounts[id(components)] = amounts
    return amounts


def scores_text(components: Sequence[Component]) -> str | None:
    """Return the names and scores of the components that have scores, as JSON, or None if there are none.

    Records from one type of node have the same text, so a store keeps the text once and refers to it by number.
    """
    scored = [(component.name, component.scores) for component in components if component.scores]
    return _encoder.encode(scored).decode() if scored else None


BETWEEN_PAUSES: Final = 100
"""Records whose rows are made before other tasks can run again: half a millisecond of work."""


class Bulk:
    """Records that are added in one transaction. Their rows are made lazily, and kept.

    So the database can be busy with some rows while the next ones are made. Records are told apart by their ``id()``.

    Args:
        amounts: :func:`amounts_of` the components of each record.
        score_sets: for each record, the number of its set of scores, if any.
        duplicates: what to do if an id is already stored.
        origin: the number of the principal and the agent.
        atomic: whether a single EXISTS undoes the whole bulk.
    """

    def __init__(
        self,
        records: Sequence[Record],
        amounts: Sequence[Amounts],
        score_sets: Sequence[int | None],
        provenance: Provenance,
        duplicates: Duplicates,
        *,
        origin: int,
        atomic: bool,
    ) -> None:
        self.records = records
        self.ids: Sequence[str] = [each.record_id for each in records]
        self.atomic = atomic
        parts = zip(amounts, score_sets, strict=True)
        self._parts = {id(each.components): part for each, part in zip(records, parts, strict=True)}
        self.provenance = provenance
        self.origin = origin
        self._duplicates = duplicates
        self._labels: dict[int, tuple[Labels, Meta | None]] = {}  # by id(); the meta is held, so that no id is reused
        self._made: dict[int, PendingRecord] = {}

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def are_distinct(self) -> bool:
        """True if no id occurs twice."""
        return len(set(self.ids)) == len(self.ids)

    def pending(self) -> list[PendingRecord]:
        """Return the rows of all records, in order.

        Raises:
            InvalidRecord: see :func:`make_pending`; the text names one invalid record.
        """
        self._make([each for each in self.records if id(each) not in self._made])
        return [self._made[id(each)] for each in self.records]

    async def parts(self, records: Sequence[Record]) -> AsyncGenerator[Sequence[PendingRecord], None]:
        """Yield the rows of some records in parts, in order. Other tasks of the event loop run between parts.

        Raises:
            InvalidRecord: see :meth:`pending`.
        """
        for first in range(0, len(records), BETWEEN_PAUSES):
            yield self._make(records[first : first + BETWEEN_PAUSES])
            await asyncio.sleep(0)

    def encode(
        self, records: Sequence[Record]
    ) -> tuple[Sequence[Labels], Sequence[Amounts], Sequence[int | None], Sequence[str]]:
        """Return the labels, the amounts, the numbers of the sets of scores, and the wire texts of records.

        Raises:
            InvalidRecord: see :meth:`pending`.
        """
        parts = [self._parts[id(each.components)] for each in records]
        amounts, known = [part[0] for part in parts], self._labels
        labels: list[Labels] = []
        texts: list[str] = []
        for first in range(0, len(records), _ENCODED_TOGETHER):
            some = records[first : first + _ENCODED_TOGETHER]
            try:
                for record in some:
                    found = known.get(id(record.meta))
                    if found is None:
                        # Cached by their text, since later bulks have jobs of the same users.
                        text = encode_part(record.meta)
                        shared = _kept_labels(text) if len(text) <= LONGEST_KEPT else _labels_of_text(text)
                        found = known[id(record.meta)] = shared, record.meta
                    labels.append(found[0])
                meta = [each.text for each in labels[first:]]
                texts += encode_records(some, meta, [each.text for each in amounts[first : first + len(some)]])
            except (UnicodeError, OverflowError):  # the error does not say which record it is about
                rows = list(map(valid_row, some))
                labels[first:] = [row.labels for row in rows]
                texts += [row.document for row in rows]
        return labels, amounts, [part[1] for part in parts], texts

    def _make(self, records: Sequence[Record]) -> list[PendingRecord]:
        made = [
            PendingRecord(
                record, _row(record, labels, amounts, text), self.provenance, self._duplicates, self.origin, score_set
            )
            for record, labels, amounts, score_set, text in zip(records, *self.encode(records), strict=True)
        ]
        self._made.update(zip(map(id, records), made, strict=True))
        return made
