"""The contents of a store, in numbers that are the same in every database."""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from auditord.store.copying.endpoints import CopiedRecord, End, Progress
from auditord.store.lake import LakePart


class ContentDigest:
    """The digest of records in the order of their ids, of all that a store knows of each."""

    def __init__(self) -> None:
        self.records = 0
        self._hash = blake2b(digest_size=16)

    def add(self, record: CopiedRecord) -> None:
        """Take in the next record."""
        self.records += 1
        self._hash.update(msgspec.msgpack.encode(record))

    def text(self) -> str:
        """The digest of all rows so far, in hexadecimal."""
        return self._hash.hexdigest()


class Contents(msgspec.Struct, frozen=True):
    """The contents of a store: how many records, their digest, the rows of other tables, what it has released."""

    records: int
    digest: str
    tables: Mapping[str, int]
    lake: LakePart | None


async def contents(end: End, progress: Progress) -> Contents:
    """Read through all records of a store."""
    digest, total, after = ContentDigest(), await end.count(), ""
    while page := await end.page(after):
        for kept in page:
            digest.add(kept)
        after = page[-1].record_id
        progress.progressed("checking", digest.records, total)
    return Contents(digest.records, digest.text(), await end.row_counts(), await end.lake())
