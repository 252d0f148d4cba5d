"""Accounts for printed pages: reads a print server's page log, one line per job, from where it stopped last time."""

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from pathlib import Path

from auditord_hookspecs import (
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
    job, user, time, pages = line.split()
    printed = datetime.fromisoformat(time)
    components = (Component("Pages", int(pages), ()),)
    return Record(f"{config.record_prefix}-{job}", printed, components, printed, {"user_id": (user,)})


async def collect(config: PageLogConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    with config.path.open() as log:
        log.seek(context.checkpoint or 0)
        while (line := log.readline()).endswith("\n"):  # a line that is still being written waits for the next run
            try:
                yield Batch(records=[convert(config, line)], checkpoint=log.tell())
            except ValueError as error:
                yield Batch(quarantined=[Quarantined(line[:80], line, str(error))], checkpoint=log.tell())


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[PageLogConfig]]:
    yield CollectorKind(name="pagelog", config=PageLogConfig, collect=collect, convert=convert)
