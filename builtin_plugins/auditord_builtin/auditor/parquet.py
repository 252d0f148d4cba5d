"""AUDITOR's archive: a Parquet file for each month that it has taken out of its database.

Columns, none with nulls: ``record_id``, ``meta`` and ``components`` as text (the latter two are JSON), ``start_time``
and ``stop_time`` with milliseconds in UTC, ``runtime`` in whole seconds, from times that had microseconds.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from auditord_builtin.auditor.source import PAGE_ROWS, Rows, SourceFailed
from auditord_hookspecs.records import runtime_seconds
from auditord_hookspecs.wire import format_time

_COLUMNS: Final = ("record_id", "meta", "components", "start_time", "stop_time")
_RUNTIME: Final = "runtime"
_LOST: Final = timedelta(microseconds=999)
_BUFFER: Final = 1 << 20
_END: Final = object()


class ParquetSource:
    """Implements :class:`auditord_builtin.auditor.source.Source` on files, or folders of ``*.parquet``, one by one.

    Raises:
        SourceFailed: pyarrow is missing, or there is no such file.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._parquet = _library()
        self._files = sorted({file for path in paths for file in _files(path)})
        self.name = "AUDITOR's archive " + ", ".join(str(path.absolute()) for path in paths)

    @asynccontextmanager
    async def pages(self, position: str | None) -> AsyncGenerator[AsyncIterator[Rows], None]:
        """Read the files in the order of their names; those before the position are not opened."""
        name, row = ("", 0) if position is None else json.loads(position)
        rows = {file: self._count(file) for file in self._files}
        async with aclosing(self._pages(rows, name, row)) as pages:
            yield pages

    async def _pages(self, rows: dict[Path, int], name: str, row: int) -> AsyncGenerator[Rows, None]:
        total, behind = max(sum(rows.values()), 1), 0
        for file, count in rows.items():
            if str(file) >= name:
                skipped = row if str(file) == name else 0
                async with aclosing(self._read(file, skipped)) as batches:
                    async for first, texts in batches:
                        yield _rows(file, first, texts, (behind + first + len(texts)) / total)
            behind += count

    async def _read(self, file: Path, skipped: int) -> AsyncGenerator[tuple[int, list[bytes]], None]:
        texts = self._texts(file, skipped)
        while (found := await asyncio.to_thread(next, texts, _END)) is not _END:
            yield found  # type: ignore[misc]  # the end has been left out
        texts.close()

    def _texts(self, file: Path, skipped: int) -> Any:  # Any: a generator, which next() and its default hide
        return _guarded(file, self._batches(file, skipped))

    def _batches(self, file: Path, skipped: int) -> Iterator[tuple[int, list[bytes]]]:
        with self._parquet.ParquetFile(file, buffer_size=_BUFFER) as opened:
            groups, first = _groups(opened.metadata, skipped)
            for batch in opened.iter_batches(PAGE_ROWS, row_groups=groups, columns=[*_COLUMNS, _RUNTIME]):
                if first + batch.num_rows > skipped:
                    yield first, [_text(row) for row in batch.to_pylist()]
                first += batch.num_rows

    def _count(self, file: Path) -> int:
        try:
            with self._parquet.ParquetFile(file) as opened:
                _check(file, opened.schema_arrow)
                count: int = opened.metadata.num_rows
        except (OSError, ValueError) as error:
            raise _unreadable(file, error) from error
        return count


def _library() -> Any:  # Any: pyarrow ships no types
    try:
        return import_module("pyarrow.parquet")
    except ImportError as error:
        raise SourceFailed("to read Parquet files, pyarrow is needed: pip install 'auditord[archive]'") from error


def _files(path: Path) -> list[Path]:
    files = sorted(path.absolute().glob("*.parquet")) if path.is_dir() else [path.absolute()]
    if not files or not files[0].is_file():
        raise SourceFailed(f"{path}: there is no such file" if not path.is_dir() else f"{path} has no *.parquet")
    return files


def _check(file: Path, schema: Any) -> None:  # Any: pyarrow's
    if missing := [name for name in _COLUMNS if name not in schema.names]:
        raise SourceFailed(f"{file} is not of AUDITOR's archive: it has no column {', '.join(missing)}")
    if naive := [name for name in _COLUMNS[3:] if getattr(schema.field(name).type, "tz", None) is None]:
        raise SourceFailed(f"{file} is not of AUDITOR's archive: {', '.join(naive)} should be a time with zone")


def _groups(metadata: Any, skipped: int) -> tuple[list[int], int]:  # Any: pyarrow's
    """The row groups from the one that has the first row which is wanted, and the number of its first row."""
    first = 0
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).num_rows
        if first + size > skipped:
            return list(range(group, metadata.num_row_groups)), first
        first += size
    return [], first


def _text(row: dict[str, Any]) -> bytes:  # Any: text or time, as pyarrow made it
    stop = row["stop_time"]
    return (
        f'{{"record_id":{json.dumps(row["record_id"], ensure_ascii=False)},"meta":{row["meta"] or "null"},'
        f'"components":{_components(row["components"])},"start_time":{_time(row["start_time"])},'
        f'"stop_time":{"null" if stop is None else _time(stop)}{_runtime(row)}}}'
    ).encode(errors="surrogatepass")


def _runtime(row: dict[str, Any]) -> str:  # Any: as pyarrow made it
    """The member, unless the times would give the same if they had not lost their microseconds."""
    start, stop, runtime = row["start_time"], row["stop_time"], row.get(_RUNTIME)
    if None in {start, stop, runtime} or runtime in {
        runtime_seconds(start, stop + lost) for lost in (timedelta(), _LOST, -_LOST)
    }:
        return ""
    return f',"runtime":{runtime}'


def _components(text: str | None) -> str:
    return "[]" if text in {None, "null"} else str(text)


def _time(moment: datetime | None) -> str:
    return "null" if moment is None else f'"{format_time(moment.astimezone(UTC))}"'


def _rows(file: Path, first: int, texts: Sequence[bytes], fraction: float) -> Rows:
    position = json.dumps([str(file), first + len(texts)])
    return Rows(texts, lambda place: f"{file.name}, row {first + place + 1}", position, fraction)


def _guarded(file: Path, batches: Iterator[tuple[int, list[bytes]]]) -> Iterator[tuple[int, list[bytes]]]:
    try:
        yield from batches
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> SourceFailed:
    return SourceFailed(f"{file} cannot be read: {str(error).splitlines()[0]}; take it from a backup, or leave it out")
