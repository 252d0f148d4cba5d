"""Manifests and manifest lists, which are Avro files, read with limits.

All programs that write to the lake can write them, and pyiceberg reads and decompresses each as a whole: a megabyte of
deflate holds a gigabyte of zeros.
"""

import zlib
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec
from pyiceberg import manifest
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import AvroFile, Block
from pyiceberg.io import InputFile
from pyiceberg.schema import Schema
from pyiceberg.typedef import EMPTY_DICT, StructProtocol
from typing_extensions import override

from auditord.store.lake import LakeUnavailable

D = TypeVar("D", bound=StructProtocol)

_MOST_METADATA: Final = 64 << 20
"""Most bytes of a file of metadata. 500 snapshots with 200 daemons need about 10 MiB."""
_MOST_DECOMPRESSED: Final = 32 << 20
"""Most bytes of a manifest. Engines begin a new one at 8 MiB compressed, and its objects take 30 times the memory."""

_MOST_ENTRIES: Final = 100_000
"""Most entries of a manifest, or manifests of a list. Each entry takes some kilobytes of memory."""


class LakeRefused(LakeUnavailable):
    """A program that can write to the lake has changed its table in a way that would steer this daemon.

    Remedy:
        find out who changed the table. Remove the property with another engine (ALTER TABLE … UNSET TBLPROPERTIES in
        Spark), roll the table back to an earlier snapshot, or restore the catalog from its backup.
    """


class _BoundedAvroFile(AvroFile[D]):
    """An Avro file whose blocks are decompressed up to a limit."""

    __slots__ = ("_entries", "_left")

    def __init__(
        self,
        input_file: InputFile,
        read_schema: Schema | None = None,
        read_types: dict[int, Callable[..., StructProtocol]] = EMPTY_DICT,
        read_enums: dict[int, Callable[..., Enum]] = EMPTY_DICT,
    ) -> None:
        super().__init__(input_file, read_schema, read_types, read_enums)
        self._left = _MOST_DECOMPRESSED
        self._entries = 0

    @override
    def __enter__(self) -> "_BoundedAvroFile[D]":
        refuse_large(self.input_file)
        super().__enter__()
        if _has_empty_elements(msgspec.json.decode(self.header.meta["avro.schema"])):
            raise self._refusal("has a list of elements without bytes, which can claim any length")
        return self

    @override
    def _read_block(self) -> int:
        if self.block and self.decoder.read(len(self.header.sync)) != self.header.sync:
            raise ValueError(f"{self.input_file.location} has a damaged block")
        entries, content = self.decoder.read_int(), self.decoder.read_bytes()
        codec = self.header.meta.get("avro.codec", "null")
        if codec == "deflate":
            content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, self._left + 1)
        elif codec != "null":
            raise self._refusal(f"is compressed with {codec!r:.40}, which no engine does by default")
        self._left -= len(content)
        self._entries += entries
        if self._left < 0 or self._entries > _MOST_ENTRIES:
            raise self._refusal(
                f"has more than {_MOST_DECOMPRESSED >> 20} MiB decompressed, or {_MOST_ENTRIES:,} entries"
            )
        self.block = Block(self.reader, entries, new_decoder(content))
        return entries

    def _refusal(self, fault: str) -> LakeRefused:
        return LakeRefused(
            f"The file {self.input_file.location!r:.200} of the lake {fault}: find out who wrote it, and roll the "
            "table back to an earlier snapshot."
        )


def refuse_large(file: InputFile) -> None:
    """Raise LakeRefused if a file of metadata is too large. pyiceberg reads it as a whole."""
    if ".gz." in file.location or len(file) > _MOST_METADATA:
        raise LakeRefused(
            f"The file {file.location!r:.200} of the lake is compressed or larger than {_MOST_METADATA >> 20} MiB: "
            "find out who wrote it, and roll the table back to an earlier snapshot."
        )


def _has_empty_elements(schema: Any) -> bool:  # Any: JSON
    """Return whether an Avro schema has an array whose elements may take no bytes."""
    match schema:
        case {"type": "array", "items": items} if _is_empty(items):
            return True
        case dict():
            members: dict[str, Any] = schema
            return any(_has_empty_elements(each) for each in members.values())
        case list():
            elements: list[Any] = schema
            return any(_has_empty_elements(each) for each in elements)
        case _:
            return False


def _is_empty(schema: Any) -> bool:  # Any: JSON
    match schema:
        case "null" | {"type": "null"} | {"type": "fixed", "size": 0}:
            return True
        case {"type": "record", "fields": fields}:
            return all(_is_empty(each.get("type")) for each in fields)
        case {"type": dict() as inner}:
            return _is_empty(inner)
        case _:
            return False


manifest.__dict__["AvroFile"] = _BoundedAvroFile
