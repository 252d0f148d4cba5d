"""Amendments as far as they can be worked out before the database is asked, whatever database that is."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from auditord.store.amendments import Amended, Amendment
from auditord.store.protocol import Duplicates, Provenance
from auditord.store.rows import Offer, make_offer
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.wire import decode_record


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """An amendment on its way into the store.

    Args:
        record_id: whose record it is.
        amendment: what is wanted.
        offer: the record that is to be there; None deletes it.
    """

    record_id: str
    amendment: Amendment
    offer: Offer | None

    def judge(self, stored: bytes | None) -> Amended:
        """What becomes of it, given what is there."""
        if stored is None:
            return Amended.MISSING
        if stored != self.amendment.stored:
            return Amended.CHANGED
        if self.offer is not None and str(self.offer.row[-1]).encode() == stored:
            return Amended.SAME
        return Amended.DONE

    @property
    def operation(self) -> Literal["insert", "close", "replace"] | None:
        """What senders carry on; None if no protocol has a request for it, or nobody wants it."""
        if self.offer is None or not self.offer.carried:
            return None
        before, after = decode_record(self.amendment.stored), self.offer.record
        if after.stop_time is None or msgspec.structs.replace(before, stop_time=after.stop_time) != after:
            return "replace"
        return "insert" if before.stop_time is None else "close"


def prepare(amendments: Sequence[Amendment], provenance: Provenance, *, carried: bool) -> Sequence[Prepared]:
    """Encode records before the writer has its turn.

    Raises:
        InvalidRecord: two of them are about one record.
    """
    prepared = [
        Prepared(
            each.record_id,
            each,
            None if each.record is None else make_offer(each.record, provenance, Duplicates.SAME_RUN, carried=carried),
        )
        for each in amendments
    ]
    if len({each.record_id for each in prepared}) < len(prepared):
        raise InvalidRecord("one record cannot be changed twice at a time")
    return prepared
