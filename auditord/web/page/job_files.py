"""Lists of jobs as files, ``/jobs.csv``, ``/jobs.xlsx`` and ``/jobs.json``: every job of a list, with its columns.

The numbers of the columns are first written to a temporary file. So a list that is too long is refused before anything
is sent, and no place for reading is held while a slow client receives the file.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, tzinfo
from functools import partial
from itertools import chain
from tempfile import TemporaryFile
from typing import BinaryIO, Final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from auditord.reporting import LabelKeys
from auditord.reporting.writing import Line, number, write_sheets
from auditord.web.limits import MOST_CELLS
from auditord.web.page.files import FileWriter, file_headers
from auditord.web.page.jobs import JobsPages, job_figures, read_columns
from auditord.web.page.query_string import JOBS, name_of, pieces_of, read_view
from auditord.web.record_query import InvalidQuery
from auditord.web.requests import client_key, read_target
from auditord.web.streams import Chunks, StreamedAnswers
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.spreadsheets import csv_line, no_formula
from auditord_hookspecs.wire import decode_record
from auditord_hookspecs.wording import counted

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(list[str | int | float | None])


class JobFiles(msgspec.Struct, frozen=True):
    """Writes lists of jobs as files."""

    pages: JobsPages
    answers: StreamedAnswers

    async def export(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send every job of a list.

        Raises:
            InvalidQuery: the file would have more than :data:`MOST_CELLS`.
        """
        asked = read_target(request.raw_path)
        pieces = pieces_of(asked.query)
        if paged := {"limit", "cursor"} & {*map(name_of, pieces)}:
            raise InvalidQuery("a file has every job of the list: leave this parameter out", min(paged))
        view, columns = read_view(asked.query, JOBS), ("record_id", *read_columns(pieces))
        now, form = self.pages.figures.now(view.zone), asked.path.rpartition(".")[2]
        query = self.pages.query(view, pieces, now).query
        opened = self._open(request, query, columns, now.tzinfo or UTC, form)
        return await self.answers.send_held(request, opened, file_headers(f"jobs.{form}"))

    @asynccontextmanager
    async def _open(
        self, request: web.BaseRequest, query: RecordQuery, columns: Sequence[str], zone: tzinfo, form: str
    ) -> AsyncGenerator[Chunks, None]:
        places, keys, folder = self.pages.figures.places, self.pages.figures.keys, self.answers.folder
        most, count = MOST_CELLS // len(columns), 0
        writer = FileWriter(places, folder)
        with TemporaryFile(dir=folder) as rows:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(places.one(client_key(request)))
                read = self.pages.figures.records(request).stream(replace(query, limit=most + 1))
                async for chunk in await stack.enter_async_context(read):
                    count += len(chunk)
                    await places.run(partial(_add_rows, rows, chunk, columns, keys, zone))
            if count > most:
                size = f"{counted(most, 'job')} with {counted(len(columns), 'column')}"
                narrower = (
                    f"more than {counted(MOST_CELLS, 'cell')}: choose a shorter period, a filter or fewer columns"
                )
                raise InvalidQuery(f"a file of more than {size} has {narrower}", "period")
            rows.seek(0)
            lines: Iterator[Line] = map(_DECODER.decode, rows)
            if form == "xlsx":
                sheets = {"Jobs": chain([columns], lines)}
                made = writer.file(lambda out, temporary: write_sheets(sheets, out, temporary))
            elif form == "csv":
                made = writer.text(csv_line(map(no_formula, line)) for line in chain([columns], lines))
            else:
                made = writer.text(_json(lines, columns))
            async with aclosing(made):
                yield made


def _add_rows(out: BinaryIO, documents: Sequence[bytes], columns: Sequence[str], keys: LabelKeys, zone: tzinfo) -> None:
    for record in map(decode_record, documents):
        meta = record.meta or {}
        values: Mapping[str, str | float | None] = {
            "start": record.start_time.astimezone(zone).isoformat(),
            "stop": None if record.stop_time is None else record.stop_time.astimezone(zone).isoformat(),
            "runtime": record.runtime,
            **{name: None if figure is None else number(figure) for name, figure in job_figures(record).items()},
        }
        others = [values[name] if name in values else ", ".join(meta.get(keys.key(name), ())) for name in columns[1:]]
        out.writelines([_ENCODER.encode([record.record_id, *others]), b"\n"])


def _json(lines: Iterator[Line], columns: Sequence[str]) -> Iterator[str]:
    separator = "["
    for line in lines:
        yield f"{separator}\n{_ENCODER.encode(dict(zip(columns, line, strict=True))).decode()}"
        separator = ","
    yield "[]\n" if separator == "[" else "\n]\n"
