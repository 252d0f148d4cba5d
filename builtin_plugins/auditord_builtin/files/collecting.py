"""The collector's run: file by file, some lines per batch; a file is put away when all its batches are durable."""

from collections.abc import AsyncIterator
from dataclasses import replace

from anyio import to_thread

from auditord_builtin.files.config import FilesConfig
from auditord_builtin.files.folder import (
    Dropped,
    FileChanged,
    RejectedLines,
    Results,
    complete_files,
    fail,
    put_away,
    require_usable_name,
)
from auditord_builtin.files.reading import Part, Place, read_part
from auditord_hookspecs import AuditordError, Batch, CollectorContext, InvalidRecord, Record, Window
from auditord_hookspecs.folders import SharedFolder, UnsafePath, identity


async def collect(config: FilesConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Take in the files that are complete; for a period that is collected again, look for its records in ``done``.

    Raises:
        AuditordError: the folder is missing or cannot be written to, or files in it cannot be used and stay there.
    """
    try:
        with SharedFolder.opened(config.folder) as folder:
            _require_usable(folder, context)
            batches = _collect_new(config, context, folder)
            async for batch in batches if context.window is None else _collect_again(config, context, context.window):
                yield batch
    except OSError as error:
        remedy = "" if config.folder.is_dir() else ": make it, and let this daemon write to it"
        raise AuditordError(f"{error.filename or config.folder}: {error.strerror}{remedy}") from error


def _require_usable(folder: SharedFolder, context: CollectorContext) -> None:
    if folder.holds(context.instance_dir):
        raise AuditordError(f"{folder.path} holds the daemon's own files: drop files into another folder")
    if not context.dry_run and not folder.may_change():
        raise AuditordError(f"{folder.path}: files cannot be removed from it: let this daemon write to it")


async def _collect_new(config: FilesConfig, context: CollectorContext, folder: SharedFolder) -> AsyncIterator[Batch]:
    with Results.opened(config.results or context.instance_dir) as results:
        if not context.dry_run:
            await to_thread.run_sync(folder.give_back)
        files = await to_thread.run_sync(complete_files, folder, context.now(), config.settle)
        carried = await context.pending()
        if gone := set(carried).difference(folder.names()):
            yield Batch(pending=dict.fromkeys(gone))
        taking = Taking(config, context, folder, results)
        for number, file in enumerate(files, start=1):
            async for batch in taking.take_in(file, Place.of(file.identity, carried.get(file.name))):
                yield batch
            context.report_progress(number / len(files))
        taking.finish()


class Taking:
    """One run over the files.

    Args:
        config: the instance's options.
        context: of the run.
        folder: what is dropped into.
        results: where files go.
    """

    def __init__(self, config: FilesConfig, context: CollectorContext, folder: SharedFolder, results: Results) -> None:
        self._config = config
        self._context = context
        self._folder = folder
        self._results = results
        self._refused: list[str] = []

    async def take_in(self, file: Dropped, place: Place) -> AsyncIterator[Batch]:
        """The batches of a file; one that cannot be used keeps no other from being taken in."""
        try:
            require_usable_name(self._folder, file.name)
            async for batch in self._take_in(file, place):
                yield batch
        except FileChanged as changed:
            self._context.log.warning("%s; it will be read again", changed)
        except UnsafePath as unsafe:
            self._refused.append(str(unsafe))
        except FileNotFoundError:
            self._context.log.warning("%s was removed before it was read", self._folder.path / file.name)
        except (PermissionError, BlockingIOError) as error:
            self._refused.append(f"{self._folder.path / file.name}: {error.strerror}")

    def finish(self) -> None:
        """End the run.

        Raises:
            AuditordError: files were refused.
        """
        if self._refused:
            raise AuditordError(f"{len(self._refused)} files stay where they are: {'; '.join(self._refused[:10])}")

    async def _take_in(self, file: Dropped, place: Place) -> AsyncIterator[Batch]:
        rejected = RejectedLines(self._results.quarantine, file.name)
        if not self._context.dry_run:
            await to_thread.run_sync(self._results.require_room, file.size)
        while not place.whole:
            try:
                part = await to_thread.run_sync(read_part, self._config, self._folder, file.name, place)
            except InvalidRecord as error:
                await self._set_aside(file, str(error))
                return
            place = await self._moved_on(place, part, rejected)
            yield Batch(part.records, part.quarantined, pending={file.name: place.to_json()})
        if not self._context.dry_run:
            rejected.finish(place.rejected)
            await to_thread.run_sync(put_away, self._folder, file, self._results.done)
            yield Batch(pending={file.name: None})  # the next file of this name may get the same inode

    async def _moved_on(self, place: Place, part: Part, rejected: RejectedLines) -> Place:
        length = place.rejected
        if not self._context.dry_run:
            length = await to_thread.run_sync(rejected.keep, length, bytes(part.rejected))
        return replace(place, offset=part.offset, line=part.line, rejected=length, whole=part.at_end)

    async def _set_aside(self, file: Dropped, reason: str) -> None:
        self._context.log.error("%s cannot be used and goes to failed: %s", self._folder.path / file.name, reason)
        if not self._context.dry_run:
            await to_thread.run_sync(fail, self._folder, file, self._results.failed, reason)


async def _collect_again(config: FilesConfig, context: CollectorContext, window: Window) -> AsyncIterator[Batch]:
    """The records of the period in files that were taken in."""
    with Results.opened(config.results or context.instance_dir) as results:
        for name in sorted(name for name in results.done.names() if not name.startswith(".")):
            place = Place(identity(results.done.status(name)))
            while not place.whole:
                part = await to_thread.run_sync(read_part, config, results.done, name, place)
                place = replace(place, offset=part.offset, line=part.line, whole=part.at_end)
                yield Batch([record for record in part.records if _ended_within(record, window)])


def _ended_within(record: Record, window: Window) -> bool:
    return window.start <= (record.stop_time or record.start_time) < window.stop
