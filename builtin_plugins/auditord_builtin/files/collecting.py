"""The collector's run: file by file, some lines per batch; a file is moved when all its batches are durable."""

from collections.abc import AsyncIterator
from dataclasses import replace

from anyio import to_thread

from auditord_builtin.files.config import FilesConfig
from auditord_builtin.files.folder import (
    DONE,
    Dropped,
    RejectedLines,
    complete_files,
    dropped_as,
    fail,
    move,
    prepare,
)
from auditord_builtin.files.reading import Part, Place, read_part
from auditord_hookspecs import AuditordError, Batch, CollectorContext, InvalidRecord, Record, Window


async def collect(config: FilesConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Take in the files that are complete; for a period that is collected again, look for its records in ``done``.

    Raises:
        AuditordError: the folder is missing or cannot be written to.
    """
    try:
        batches = _collect_new(config, context) if context.window is None else _collect_again(config, context.window)
        async for batch in batches:
            yield batch
    except OSError as error:
        raise AuditordError(f"{error.filename or config.folder}: {error.strerror}") from error


async def _collect_new(config: FilesConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    await to_thread.run_sync(prepare, config.folder)
    files = await to_thread.run_sync(complete_files, config.folder, context.now(), config.settle)
    carried = await context.pending()
    if gone := set(carried) - {path.name for path in config.folder.iterdir()}:
        yield Batch(pending=dict.fromkeys(gone))
    for number, file in enumerate(files, start=1):
        async for batch in _take_in(config, context, file, Place.of(file.identity, carried.get(file.path.name))):
            yield batch
        context.report_progress(number / len(files))


async def _take_in(config: FilesConfig, context: CollectorContext, file: Dropped, place: Place) -> AsyncIterator[Batch]:
    rejected = RejectedLines(file.path)
    while not place.whole:
        try:
            part = await to_thread.run_sync(read_part, config, file.path, place.offset, place.line)
        except InvalidRecord as error:
            await _set_aside(context, file, str(error))
            return
        place = await _moved_on(context, place, part, rejected)
        if place.whole and dropped_as(file.path).identity != file.identity:
            context.log.warning("%s was written to while it was read; it will be read again", file.path)
            return
        yield Batch(part.records, part.quarantined, pending={file.path.name: place.to_json()})
    if not context.dry_run:
        rejected.finish(place.rejected)
        move(file.path, DONE)


async def _moved_on(context: CollectorContext, place: Place, part: Part, rejected: RejectedLines) -> Place:
    length = place.rejected
    if not context.dry_run:
        length = await to_thread.run_sync(rejected.keep, length, bytes(part.rejected))
    return replace(place, offset=part.offset, line=part.line, rejected=length, whole=part.at_end)


async def _set_aside(context: CollectorContext, file: Dropped, reason: str) -> None:
    context.log.error("%s cannot be used and goes to failed: %s", file.path, reason)
    if not context.dry_run:
        await to_thread.run_sync(fail, file.path, reason)


async def _collect_again(config: FilesConfig, window: Window) -> AsyncIterator[Batch]:
    """The records of the period in files that were taken in, wherever they stand."""
    await to_thread.run_sync(prepare, config.folder)
    for path in sorted((config.folder / DONE).iterdir()):
        offset, line, at_end = 0, 0, False
        while not at_end:
            part = await to_thread.run_sync(read_part, config, path, offset, line)
            offset, line, at_end = part.offset, part.line, part.at_end
            yield Batch([record for record in part.records if _ended_within(record, window)])


def _ended_within(record: Record, window: Window) -> bool:
    return window.start <= (record.stop_time or record.start_time) < window.stop
