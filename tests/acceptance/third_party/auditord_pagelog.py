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
    Window,
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


def read(config: PageLogConfig, start: int, window: Window | None) -> Batch:
    with config.path.open("rb") as log:
        if log.seek(0, os.SEEK_END) < start:
            raise AuditordError(f"{config.path} is shorter than at the last run: was it rotated? Rename this collector")
        log.seek(start)
        lines = [line for line in log.readlines(100_000) if line.endswith(b"\n")]  # an unfinished line waits
    records, quarantined = list[Record](), list[Quarantined]()
    for raw in lines:
        line = raw.decode(errors="backslashreplace").strip()
        try:
            record = convert(config, line)
        except ValueError as error:
            quarantined.append(Quarantined(source_id=line.split(" ")[0], raw=line, reason=str(error)))
            continue
        if window is None or record.start_time in window:
            records.append(record)
    return Batch(records, quarantined, checkpoint=start + sum(map(len, lines)))


async def collect(config: PageLogConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    position = 0 if context.window else context.checkpoint or 0
    while (batch := await anyio.to_thread.run_sync(read, config, position, context.window)).checkpoint != position:
        yield batch
        position = batch.checkpoint


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[PageLogConfig]]:
    yield CollectorKind(name="pagelog", config=PageLogConfig, collect=collect, convert=convert)
