"""Requests and responses for changes to single records."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from auditord.actions import Outcome
from auditord.store import Action, Version
from auditord.store.amendments import LONGEST_REASON
from auditord.web.api.shapes import Instant, StoredRecord
from auditord.web.problem_shapes import doc
from auditord_hookspecs import Record
from auditord_hookspecs.wire import format_time

Reason = Annotated[str, Meta(min_length=1, max_length=LONGEST_REASON)]
_SECONDS: Final = 10**11  # no calendar has more


class _Reasoned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    reason: Annotated[Reason, doc("the reason, which is stored.")]
    by: Annotated[str | None, doc("the author's name; default: the caller's.")] = None


class CorrectionWanted(_Reasoned, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The correction of a stored record."""

    record: Annotated[Record, doc("the record that replaces the stored record with the same id.")]
    seen: Annotated[
        Record | None,
        doc("the stored record as the caller last read it; if the record has changed since, nothing is done."),
    ] = None


class ClosingWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stop of an open record, given by exactly one of ``stop_time`` and ``runtime``."""

    record_id: Annotated[str, doc("the id of the open record.")]
    stop_time: Annotated[Instant | None, doc("the stop time.")] = None
    runtime: Annotated[Annotated[int, Meta(ge=0, le=_SECONDS)] | None, doc("seconds from the start to the stop.")] = (
        None
    )


class ClosingsWanted(_Reasoned, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Stops of open records."""

    closings: Annotated[list[ClosingWanted], doc("one for each record.")]


class DeletionsWanted(_Reasoned, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Records to delete."""

    ids: Annotated[list[str], doc("the ids of the records.")]


class Outcomes(msgspec.Struct, frozen=True):
    """The outcomes of changes."""

    outcomes: Annotated[list[Outcome], doc("one for each record.")]


class FormerVersion(msgspec.Struct, frozen=True):
    """The version of a record before a change."""

    number: Annotated[int, doc("the number of the change; it increases with each change of a record.")]
    action: Annotated[Action, doc("the change that ended this version: ``correct``, ``close`` or ``delete``.")]
    reason: Annotated[str, doc("the reason for the change.")]
    changed_at: Annotated[Instant, doc("when the record was changed.")]
    changed_by: Annotated[str | None, doc("who changed the record.")]
    record: Annotated[StoredRecord, doc("the record before the change.")]
    received_at: Annotated[Instant, doc("when the record first arrived.")]
    updated_at: Annotated[Instant | None, doc("when this version arrived, or null for the first one.")]
    principal: Annotated[str | None, doc("the principal that sent this version.")]


class History(msgspec.Struct, frozen=True):
    """The former versions of a record."""

    versions: Annotated[
        list[FormerVersion],
        doc("one for each change, the oldest first; none if the record was never corrected, closed or deleted."),
    ]


def former(version: Version) -> FormerVersion:
    return FormerVersion(
        number=version.number,
        action=version.action,
        reason=version.reason,
        changed_at=format_time(version.changed_at),
        changed_by=version.changed_by,
        record=msgspec.json.decode(version.document, type=StoredRecord),
        received_at=format_time(version.received_at),
        updated_at=None if version.updated_at is None else format_time(version.updated_at),
        principal=version.principal,
    )
