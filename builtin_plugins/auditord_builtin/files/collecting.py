"""The kind ``files``. A run reads file by file, with some lines per batch."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any, Final

from anyio import to_thread
from msgspec.structs import asdict, replace

from auditord_builtin.files.places import (
    SUFFIXES,
    Dropped,
    FileChanged,
    RejectedLines,
    Results,
    fail,
    list_files,
    put_away,
    require_usable,
)
from auditord_builtin.files.reading import FilesConfig, Position, convert, read_part
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    CollectorKind,
    Context,
    InvalidRecord,
    Record,
    Window,
)
from auditord_hookspecs.checks import Finding, check_folder
from auditord_hookspecs.folders import SharedFolder, identity
from auditord_hookspecs.wording import counted


async def collect(config: FilesConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Collect the complete files or, if a window is given, collect its records again from ``done``.

    Raises:
        AuditordError: the folder is missing or not writable, or some files cannot be used and stay there.
    """
    try:
        with SharedFolder.opened(config.folder) as folder, TemporaryDirectory(prefix="auditord-") as temporary:
            if folder.holds(context.instance_dir):
                raise AuditordError(f"{folder.path} holds the daemon's own files: drop files into another folder")
            if not context.dry_run and not folder.may_change():
                raise AuditordError(f"{folder.path}: files cannot be removed from it: let this daemon write to it")
            root = config.results or context.instance_dir
            if context.dry_run and (context.window is None or not (root / "done").is_dir()):
                root = Path(temporary)  # opening the results would create them
            with Results.opened(root) as results:
                run = _Run(config, context, folder, results)
                async for batch in run.collect_new() if context.window is None else run.collect_again(context.window):
                    yield batch
    except OSError as error:
        remedy = "" if config.folder.is_dir() else ": create it, and let this daemon write to it"
        raise AuditordError(f"{error.filename or config.folder}: {error.strerror}{remedy}") from error


@dataclass
class _Run:
    """One run over the files. ``refused`` contains the reasons why files stay in the folder."""

    config: FilesConfig
    context: CollectorContext
    folder: SharedFolder
    results: Results
    refused: list[str] = field(default_factory=list[str])

    async def collect_new(self) -> AsyncIterator[Batch]:
        """Collect all complete files.

        Raises:
            AuditordError: some files cannot be used and stay in the folder.
        """
        if not self.context.dry_run:
            self.results.claim()
            errors = await to_thread.run_sync(self.folder.give_back)
            self.refused += [f"{self.folder.path / error.filename}: {error.strerror}" for error in errors]
        listing = await to_thread.run_sync(list_files, self.folder, self.context.now(), self.config.settle)
        self.refused += [f"{self.folder.path / name} is dated in the future: touch it" for name in listing.future]
        pending = await self.context.pending()
        if removed := set(pending).difference(self.folder.names()):
            await to_thread.run_sync(self._keep_rejected, {name: pending[name] for name in removed})
            yield Batch(pending=dict.fromkeys(removed))
        if listing.irregular:
            yield Batch(skipped={"a link, a folder or another name that is no file": listing.irregular})
        for number, file in enumerate(listing.complete, start=1):
            async for batch in self._collect_file(file, Position.restored(file.identity, pending.get(file.name))):
                yield batch
            self.context.report_progress(number / len(listing.complete))
        self._check_refused("stays in place", "stay in place")

    def _keep_rejected(self, removed: Mapping[str, Any]) -> None:  # Any: JSON of the spool
        """Keep the invalid lines of files that another user removed before they were read to the end."""
        for name, position in removed.items():
            if not self.context.dry_run:
                RejectedLines(self.results.quarantine, name).finish(position["rejected"])

    async def collect_again(self, window: Window) -> AsyncIterator[Batch]:
        """Yield the window's records from files that were collected before, except those that were rotated like logs.

        Raises:
            AuditordError: some files cannot be read by the current options.
        """
        done = self.results.done
        for name in sorted(name for name in done.names() if PurePath(name).suffix in SUFFIXES):
            try:
                position = Position(identity(done.status(name)))
                while not position.whole:
                    part = await to_thread.run_sync(read_part, self.config, done, name, position)
                    position = part.position
                    records = [each for each in part.outcomes.records if isinstance(each, Record)]
                    ends = ((record, record.stop_time or record.start_time) for record in records)
                    yield Batch([record for record, end in ends if window.start <= end < window.stop])
            except OSError as error:
                self.refused.append(f"{done.path / name}: {error.strerror}")
            except AuditordError as error:
                self.refused.append(f"{done.path / name}: {error}")
        self._check_refused("cannot be read again", "cannot be read again")

    def _check_refused(self, one: str, several: str) -> None:
        if self.refused:
            count = counted(len(self.refused), f"file {one}", f"files {several}")
            raise AuditordError(f"{count}: {'; '.join(self.refused[:10])}")

    async def _collect_file(self, file: Dropped, position: Position) -> AsyncIterator[Batch]:
        """Yield the batches of a file. Errors in a file do not stop the run."""
        path = self.folder.path / file.name
        try:
            require_usable(self.folder, file)
            if not self.context.dry_run:
                await to_thread.run_sync(self.results.require_room, file, self.context.instance_dir)
            async for batch in self._read(file, position):
                yield batch
        except FileChanged as changed:
            self.context.log.warning("%s; it will be read again", changed)
        except FileNotFoundError:
            self.context.log.warning("%s was removed before it was read", path)
        except AuditordError as error:
            self.refused.append(str(error))
        except OSError as error:
            self.refused.append(f"{path}: {error.strerror}")

    async def _read(self, file: Dropped, position: Position) -> AsyncIterator[Batch]:
        rejected = RejectedLines(self.results.quarantine, file.name)
        while not position.whole:
            try:
                part = await to_thread.run_sync(read_part, self.config, self.folder, file.name, position)
            except InvalidRecord as error:
                path = self.folder.path / file.name
                self.context.log.error("%s cannot be used and goes to failed: %s", path, error)  # noqa: TRY400 no trace
                if not self.context.dry_run:
                    await to_thread.run_sync(fail, self.folder, file, self.results.failed, str(error))
                return
            position = part.position
            if not self.context.dry_run:
                kept = await to_thread.run_sync(rejected.keep, position.rejected, bytes(part.rejected))
                position = replace(position, rejected=kept)
            yield part.outcomes.batch(pending={file.name: asdict(position)})
        if not self.context.dry_run:
            rejected.finish(position.rejected)
            await to_thread.run_sync(put_away, self.folder, file, self.results.done)
            yield Batch(pending={file.name: None})  # the next file may get the same name and inode


async def check(config: FilesConfig, _: Context) -> AsyncGenerator[Finding, None]:
    """Check the drop folder."""
    yield check_folder(config.folder, "create it, and let this daemon write to it")


FILES: Final = CollectorKind(
    name="files",
    config=FilesConfig,
    collect=collect,
    interval=timedelta(minutes=1),
    convert=convert,
    inventory=collect,
    check=check,
    delay="settle",
)
