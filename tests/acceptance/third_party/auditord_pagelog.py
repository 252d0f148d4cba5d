"""Accounts for printed pages: reads a print server's page log, one line per job, from where it stopped last time."""

import os
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from pathlib import Path

import anyio.to_thread

from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    CollectorKind,
    Component,
    Quarantined,
    Record,
    RunConfig,
    hookimpl,
)

AUDITORD_CONTRACT = "1.0"


class PageLogConfig(RunConfig):
    path: Path
    record_prefix: str = "pages"


def convert(config: PageLogConfig, line: str) -> Record:
    try:
        job, user, time, pages = line.split()
        printed, components = datetime.fromisoformat(time), (Component("Pages", int(pages), ()),)
        return Record(f"{config.record_prefix}-{job}", printed, components, printed, {"user_id": (user,)})
    except ValueError as error:
        raise ValueError(f"expected a line such as '17 alice 2026-11-01T08:00:00Z 12': {error}") from error


def read(path: Path, start: int) -> list[bytes]:
    with path.open("rb") as log:
        if log.seek(0, os.SEEK_END) < start:
            raise AuditordError(f"{path} is shorter than at the last run: was it rotated? Rename this collector")
        log.seek(start)
        return [line for line in log.readlines(100_000) if line.endswith(b"\n")]  # an unfinished line waits


async def collect(config: PageLogConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    position: int = 0 if context.window else context.checkpoint or 0
    while lines := await anyio.to_thread.run_sync(read, config.path, position):
        position += sum(map(len, lines))
        records, quarantined = list[Record](), list[Quarantined]()
        for line in (raw.decode(errors="backslashreplace").strip() for raw in lines):
            try:
                record = convert(config, line)
            except ValueError as error:
                quarantined.append(Quarantined(source_id=line.split(" ")[0], raw=line, reason=str(error)))
                continue
            if context.window is None or record.start_time in context.window:
                records.append(record)
        yield Batch(records, quarantined, checkpoint=position)


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[PageLogConfig]]:
    yield CollectorKind(name="pagelog", config=PageLogConfig, collect=collect, convert=convert)
