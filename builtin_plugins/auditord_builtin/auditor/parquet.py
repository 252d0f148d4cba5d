"""AUDITOR's archive: a Parquet file for each month that AUDITOR has moved out of its database.

Columns, none with nulls: ``record_id``, ``meta`` and ``components`` as text (the latter two are JSON), ``start_time``
and ``stop_time`` in milliseconds, in UTC, and ``runtime`` in whole seconds, computed from times with microseconds.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from auditord_builtin.auditor.conversion import PAGE_ROWS, Rows, SourceFailed
from auditord_hookspecs.records import runtime_seconds
from auditord_hookspecs.wire import format_time

_COLUMNS: Final = ("record_id", "meta", "components", "start_time", "stop_time")
_RUNTIME: Final = "runtime"
_LOST: Final = timedelta(microseconds=999)
_BUFFER: Final = 1 << 20


class ParquetSource:
    """Implements :class:`auditord_builtin.auditor.conversion.Source` for files, or folders of ``*.parquet``.

    Raises:
        SourceFailed: pyarrow is missing, or a file does not exist.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        try:
            self._parquet: Any = import_module("pyarrow.parquet")  # it ships no types
        except ImportError as error:
            raise SourceFailed("to read Parquet files, pyarrow is needed: pip install 'auditord[arrow]'") from error
        self._files = sorted({file for path in paths for file in _files(path)}, key=_order)
        self.name = "AUDITOR's archive " + ", ".join(str(path.absolute()) for path in paths)

    async def rows(self, position: str | None) -> AsyncGenerator[Rows, None]:
        """Read the files in the order of their names. Rows of files before the position are not read."""
        name, row = ("", 0) if position is None else json.loads(position)
        counts: dict[Path, int] = {}
        for file in self._files:
            with _source_errors(file), self._parquet.ParquetFile(file) as opened:
                schema = opened.schema_arrow
                if missing := [name for name in _COLUMNS if name not in schema.names]:
                    raise SourceFailed(f"{file} is not an AUDITOR archive: it has no column {', '.join(missing)}")
                if naive := [each for each in _COLUMNS[3:] if getattr(schema.field(each).type, "tz", None) is None]:
                    columns = ", ".join(naive)
                    raise SourceFailed(f"{file} is not an AUDITOR archive: {columns} should be a time with a zone")
                counts[file] = opened.metadata.num_rows
        total, behind = max(sum(counts.values()), 1), 0
        for file, count in counts.items():
            if _order(file) >= _order(Path(name)):
                batches = self._batches(file, row if file == Path(name) else 0)
                while (found := await asyncio.to_thread(next, batches, None)) is not None:
                    yield _rows(file, *found, (behind + found[0] + len(found[1])) / total)
            behind += count

    def _batches(self, file: Path, skipped: int) -> Iterator[tuple[int, list[bytes]]]:
        first = 0
        with _source_errors(file), self._parquet.ParquetFile(file, buffer_size=_BUFFER) as opened:
            for batch in opened.iter_batches(PAGE_ROWS, columns=[*_COLUMNS, _RUNTIME]):
                if first + batch.num_rows > skipped:
                    yield first, [_text(row) for row in batch.to_pylist()]
                first += batch.num_rows


def _order(file: Path) -> tuple[str, ...]:
    """Return the sort key of a file. Paths themselves, the empty one too, compare otherwise from Python 3.12 on."""
    return file.parts


def _files(path: Path) -> list[Path]:
    files = sorted(path.absolute().glob("*.parquet")) if path.is_dir() else [path.absolute()]
    if not files or not files[0].is_file():
        raise SourceFailed(f"{path}: there is no such file" if not path.is_dir() else f"{path} has no *.parquet")
    return files


def _text(row: dict[str, Any]) -> bytes:  # Any: text or time, as pyarrow made it
    start, stop, components, runtime = row["start_time"], row["stop_time"], row["components"], row.get(_RUNTIME)
    if components in {None, "null"}:
        components = "[]"
    # The runtime is left out if it follows from the times before they were truncated.
    follows = None in {start, stop, runtime} or runtime in {
        runtime_seconds(start, stop + lost) for lost in (timedelta(), _LOST, -_LOST)
    }
    member = "" if follows else f',"runtime":{runtime}'
    return (
        f'{{"record_id":{json.dumps(row["record_id"], ensure_ascii=False)},"meta":{row["meta"] or "null"},'
        f'"components":{components},"start_time":{_time(start)},"stop_time":{_time(stop)}{member}}}'
    ).encode(errors="surrogatepass")


def _time(moment: datetime | None) -> str:
    return "null" if moment is None else f'"{format_time(moment.astimezone(UTC))}"'


def _rows(file: Path, first: int, texts: Sequence[bytes], fraction: float) -> Rows:
    position = json.dumps([str(file), first + len(texts)])
    return Rows(texts, lambda place: f"{file.name}, row {first + place + 1}", position, fraction)


@contextmanager
def _source_errors(file: Path) -> Generator[None, None, None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise SourceFailed(f"{file} cannot be read: {reason}; restore it from a backup, or leave it out") from error
