"""Records into texts that the broker takes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from auditord_builtin.apel.messages.rows import Message
from auditord_builtin.apel.messages.text import END
from auditord_builtin.apel.months import Month

MOST_BYTES: Final = 900_000
"""Of a message as the broker gets it; it takes 1 MB and answers 413 above."""

_FRAME: Final = 16_000
"""Bytes of signature, certificates, boundaries and JSON."""


@dataclass(frozen=True, slots=True)
class Block:
    """One record of a message.

    Args:
        header: the first line of the message that it belongs to.
        site: its name in GOCDB.
        month: in which the jobs ended.
        lines: keys and values.
        record_id: of a single job.
    """

    header: str
    site: str
    month: Month
    lines: Sequence[tuple[str, str]]
    record_id: str | None = None

    @property
    def text(self) -> str:
        """As it stands in the message."""
        return "".join([f"{key}: {value}\n" for key, value in self.lines]) + END


def pack(blocks: Iterable[Block], most_bytes: int = MOST_BYTES) -> Sequence[Message]:
    """Messages with these records, one header, site and month each, in their order."""
    return [
        _message(batch)
        for _, alike in groupby(blocks, lambda block: (block.header, block.site, block.month))
        for batch in _batches(alike, most_bytes)
    ]


def encoded_size(text: str) -> int:
    """At most how many bytes the broker gets: signed as quoted-printable with CRLF, then base64; without the frame."""
    plain = len(text.encode("ascii", "ignore"))
    wide = plain + 2 * text.count("=") + 3 * (len(text.encode()) - plain)
    signed = (wide + text.count("\n")) * 80 // 76 + 1
    return (signed + 2) // 3 * 4


def _batches(blocks: Iterable[Block], most_bytes: int) -> Iterator[list[Block]]:
    batch: list[Block] = []
    size = _FRAME
    for block in blocks:
        more = encoded_size(block.text)
        if batch and size + more > most_bytes:
            yield batch
            batch, size = [], _FRAME
        batch.append(block)
        size += more
    yield batch


def _message(batch: Sequence[Block]) -> Message:
    first = batch[0]
    ids = tuple([block.record_id for block in batch if block.record_id is not None])
    text = f"{first.header}\n" + "".join([block.text for block in batch])
    return Message(text, len(batch), first.site, first.month, ids)
