"""Files that the page offers for download, written piece by piece in threads."""

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, Final, TypeAlias

import msgspec

from auditord.web.places import ReadingPlaces

TYPES: Final = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "svg": "image/svg+xml",
}

LIST_FORMS: Final = {"csv": "CSV", "xlsx": "XLSX", "json": "JSON"}
"""The formats of lists of jobs, and their names."""

WriteFile: TypeAlias = Callable[[BinaryIO, Path | None], Generator[None, None, None]]
"""Writes a file in steps, with temporary files in a folder; None is the system's."""

PIECE: Final = 1 << 16
_LAST: Final = object()


def file_headers(name: str) -> Mapping[str, str]:
    """Return the headers of a download; the end of its name is a key of :data:`TYPES`."""
    return {
        "Content-Type": TYPES[name.rpartition(".")[2]],
        "Content-Disposition": f'attachment; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }


class FileWriter(msgspec.Struct, frozen=True):
    """Makes the chunks of a download.

    Args:
        places: has the threads.
        folder: for temporary files; None for the system's.
    """

    places: ReadingPlaces
    folder: Path | None

    async def text(self, pieces: Iterator[str]) -> AsyncGenerator[Sequence[bytes], None]:
        while chunk := await self.places.run(lambda: join_pieces(pieces)):
            yield [chunk]

    async def file(self, write: WriteFile) -> AsyncGenerator[Sequence[bytes], None]:
        """Yield the chunks of a file. The file is first written to disk, because its beginning is written last."""
        run = self.places.run
        with TemporaryFile(dir=self.folder) as file:
            steps = write(file, self.folder)
            try:
                while await run(lambda: next(steps, _LAST)) is not _LAST:
                    pass
            finally:
                await run(steps.close)
            file.seek(0)
            while chunk := await run(lambda: file.read(PIECE)):
                yield [chunk]


def join_pieces(pieces: Iterator[str]) -> bytes:
    """Return the next pieces of a text, joined to at least :data:`PIECE` characters; empty at the end."""
    taken, size = list[str](), 0
    while size < PIECE and (piece := next(pieces, None)) is not None:
        taken.append(piece)
        size += len(piece)
    return "".join(taken).encode()
