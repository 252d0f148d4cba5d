"""A record as a row, whatever database keeps it: everything that can be computed before its writer has its turn."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, LiteralString, TypeAlias

import msgspec

from auditord.store.protocol import Duplicates, Provenance
from auditord.store.verdicts import Identity, anonymous_hash, content_hash
from auditord_hookspecs import Component, InvalidRecord, Record
from auditord_hookspecs.records import MAX_AMOUNT
from auditord_hookspecs.wire import encode_record

META_COLUMNS: Final[Mapping[str, LiteralString]] = {"site_id": "site", "group_id": "user_group", "user_id": "user_name"}
"""Columns for the first value of meta keys; they tell all of these keys where ``more`` is not set."""

OLDER_KEYS: Final = frozenset({"site", "group", "user"})
"""What these keys are called in older records. ``more`` is set for every record that has one of them."""

AMOUNT_COLUMNS: Final[Mapping[str, LiteralString]] = {
    "Cores": "cores",
    "Memory": "memory",
    "GPU": "gpu",
    "TotalCPU": "total_cpu",
}
"""Columns for the amounts of components; the same."""

SMALL_AMOUNTS: Final = frozenset({"Cores", "GPU", "TotalCPU"})
"""What counts things or seconds; of other components, amounts may well be bytes."""

LONGEST_NAME: Final = 200
"""Characters of a principal or an agent that are kept: anybody can send a longer one."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_encoder: Final = msgspec.json.Encoder()

Value: TypeAlias = str | int | None
_Meta: TypeAlias = Mapping[str, Sequence[str]]


class PendingRecord(msgspec.Struct, frozen=True, gc=False):
    """A record on its way into the store.

    Args:
        record: as it was offered.
        row: its columns from ``start_time`` to ``document``, in the order of the statements.
        scores: what its components score (:func:`scores_text`).
        provenance: who brought it, and when.
        duplicates: what it means if the id is known.
        forwarded: whether what becomes of it is put into the outbox.
    """

    record: Record
    row: tuple[Value, ...]
    scores: str | None
    provenance: Provenance
    duplicates: Duplicates
    forwarded: bool = False

    @property
    def identity(self) -> Identity:
        """What the verdict depends on."""
        start, stop, *_, content, _ = self.row
        return Identity(start, stop, content, anonymous_hash(self.record))  # type: ignore[arg-type]  # as make_pending has put them


def make_pending(
    record: Record, provenance: Provenance, duplicates: Duplicates, *, forwarded: bool = False
) -> PendingRecord:
    """Encode a record.

    Raises:
        InvalidRecord: it cannot be encoded, since somebody got around the checks of :class:`Record`.
    """
    try:
        return PendingRecord(record, columns(record), scores_text(record.components), provenance, duplicates, forwarded)
    except (UnicodeError, OverflowError) as error:
        raise InvalidRecord(f"The record {record.record_id!r} cannot be stored: {error}.") from error


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970 of an aware instant, exactly."""
    span = moment - _EPOCH
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def from_micros(micros: int) -> datetime:
    """The instant in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def kept_name(text: str | None) -> str:
    """What is kept of a principal or an agent; an empty text if there is none."""
    if not text:
        return ""
    if len(text) <= LONGEST_NAME and text.isascii() and "\0" not in text:
        return text  # as nearly always
    # A header may hold bytes that are no text at all.
    return text[:LONGEST_NAME].replace("\0", "").encode(errors="replace").decode()


def unfinished_copy(where: str, source: str) -> str:
    """Why a store is not used that was only filled in part."""
    return f"{where} holds only a part of {source}: go on with `auditord database copy --resume`."


def can_be_there(text: str) -> bool:
    """Whether any stored text can equal it; a database may refuse to be asked for others."""
    return "\0" not in text and text.encode(errors="replace").decode() == text


def document_text(record: Record) -> str:
    """The wire text."""
    return encode_record(record).decode()


def scores_text(components: Sequence[Component]) -> str | None:
    """The names of components that have scores, with their scores, as JSON; None if there are none.

    Records of one type of node have the same text, so a store keeps it once and a number in each record.
    """
    scored = [(component.name, component.scores) for component in components if component.scores]
    return _encoder.encode(scored).decode() if scored else None


def columns(record: Record) -> tuple[Value, ...]:
    """The columns of a record from ``start_time`` to ``document``, see :class:`PendingRecord`."""
    stop = None if record.stop_time is None else to_micros(record.stop_time)
    site, group, user, more_values = _dimensions(record.meta or {})
    cores, memory, gpu, total_cpu, more_components = _amounts(record.components)
    more = 1 if more_values or more_components else None
    start, content, document = to_micros(record.start_time), content_hash(record), document_text(record)
    return start, stop, site, group, user, more, cores, memory, gpu, total_cpu, content, document


def _dimensions(meta: _Meta) -> tuple[str | None, str | None, str | None, bool]:
    site, more_sites = _dimension(meta, "site_id", "site")
    group, more_groups = _dimension(meta, "group_id", "group")
    user, more_users = _dimension(meta, "user_id", "user")
    return site, group, user, more_sites or more_groups or more_users


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
