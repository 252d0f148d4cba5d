"""Amendments as far as they can be worked out before the database is asked, whatever database that is."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from auditord.store.amendments import Amended, Amendment
from auditord.store.protocol import Duplicates, Provenance
from auditord.store.rows import PendingRecord, make_pending
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.wire import decode_record


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """An amendment on its way into the store.

    Args:
        record_id: whose record it is.
        amendment: what is wanted.
        pending: the record that is to be there; None deletes it.
    """

    record_id: str
    amendment: Amendment
    pending: PendingRecord | None

    def classify(self, stored: bytes | None) -> Amended:
        """What becomes of it, given what is there."""
        if stored is None:
            return Amended.MISSING
        if stored != self.amendment.stored:
            return Amended.CHANGED
        if self.pending is not None and str(self.pending.row[-1]).encode() == stored:
            return Amended.SAME
        return Amended.DONE

    @property
    def operation(self) -> Literal["insert", "close", "replace"] | None:
        """What senders forward; None if no protocol has a request for it, or nobody wants it."""
        if self.pending is None or not self.pending.forwarded:
            return None
        before, after = decode_record(self.amendment.stored), self.pending.record
        if after.stop_time is None or msgspec.structs.replace(before, stop_time=after.stop_time) != after:
            return "replace"
        return "insert" if before.stop_time is None else "close"


def prepare(amendments: Sequence[Amendment], provenance: Provenance, *, forwarded: bool) -> Sequence[Prepared]:
    """Encode records before the writer has its turn.

    Raises:
        InvalidRecord: two of them are about one record.
    """
    prepared = [
        Prepared(
            each.record_id,
            each,
            None
            if each.record is None
            else make_pending(each.record, provenance, Duplicates.SAME_RUN, forwarded=forwarded),
        )
        for each in amendments
    ]
    if len({each.record_id for each in prepared}) < len(prepared):
        raise InvalidRecord("one record cannot be changed twice at a time")
    return prepared
