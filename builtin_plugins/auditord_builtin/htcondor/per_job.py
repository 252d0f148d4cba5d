"""HTCondor's ``PER_JOB_HISTORY_DIR`` as a source: a file per job, which its reader has to remove.

A file is removed by the run after the one that kept its record: then the spool remembers it, whatever has happened in
between. A dry run removes nothing.
"""

import hashlib
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Final

from anyio import to_thread

from auditord_builtin.htcondor.ads import JobAd
from auditord_builtin.htcondor.classifying import classify, wanted_again
from auditord_builtin.htcondor.evaluation import read_ad
from auditord_builtin.htcondor.query import Source, wanted_columns
from auditord_hookspecs import AuditordError, Batch
from auditord_hookspecs.folders import SharedFolder, UnsafePath

_CHUNK: Final = 1_000
_LONGEST: Final = 16 << 20
_REMEMBERED: Final = timedelta(days=3650)
"""Until it is removed a file must not be taken for a new one, and it may be there for long if removing fails."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """One file; its key has a hash of its text, since two jobs may use one file name, one after the other."""

    name: str
    key: str
    ad: JobAd


async def collect_folder(source: Source) -> AsyncIterator[Batch]:
    """Account for the files that are there.

    Raises:
        AuditordError: the folder or a file cannot be read, or a file cannot be removed.
    """
    if source.config.per_job_history_dir is None:
        return
    with _opened(source.config.per_job_history_dir) as folder:
        async for batch in _collect(source, folder):
            yield batch


async def _collect(source: Source, folder: SharedFolder) -> AsyncIterator[Batch]:
    context = source.context
    remaining = iter(await to_thread.run_sync(_list, folder))
    while chunk := list(islice(remaining, _CHUNK)):
        texts, refused = await to_thread.run_sync(_read, folder, chunk)
        files = await to_thread.run_sync(_parsed, source, texts, abandon_on_cancel=True)
        for unsafe in refused:
            context.log.error("%s", unsafe)
        if source.again:
            yield await classify(source, wanted_again(source, [file.ad for file in files]))
            continue
        known = await context.seen([file.key for file in files])
        if not context.dry_run:
            await to_thread.run_sync(_remove, folder, [file.name for file in files if file.key in known])
        yield await _classified(source, [file for file in files if file.key not in known])


async def _classified(source: Source, files: Sequence[JobFile]) -> Batch:
    batch = await classify(source, [file.ad for file in files])
    until = source.context.now() + _REMEMBERED
    return replace(batch, seen={**batch.seen, **dict.fromkeys((file.key for file in files), until)})


@contextmanager
def _opened(path: Path) -> Generator[SharedFolder, None, None]:
    try:
        with SharedFolder.opened(path) as folder:
            yield folder
    except OSError as error:
        raise AuditordError(f"cannot read PER_JOB_HISTORY_DIR {path}: {error}") from error


def _list(folder: SharedFolder) -> list[str]:
    """The files by name; HTCondor writes under another name (``.history.…``) and renames."""
    return sorted(name for name in folder.names() if name.startswith("history."))


def _read(folder: SharedFolder, names: Sequence[str]) -> tuple[dict[str, bytes], list[UnsafePath]]:
    """The texts by name, and why some stay unread: HTCondor's user makes neither links nor FIFOs there."""
    texts: dict[str, bytes] = {}
    refused: list[UnsafePath] = []
    for name in names:
        try:
            texts[name] = _content(folder, name)
        except UnsafePath as error:
            refused.append(error)
    return texts, refused


def _content(folder: SharedFolder, name: str) -> bytes:
    with folder.open_file(name) as file:
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise UnsafePath(f"{folder.path / name}: is larger than {_LONGEST >> 20} MiB: that is no job's ad; look at it")
    return content


def _parsed(source: Source, texts: Mapping[str, bytes]) -> list[JobFile]:
    columns = wanted_columns(source.config)
    return [
        JobFile(
            name,
            f"file/{name}/{hashlib.sha256(content).hexdigest()[:16]}",
            read_ad(source.evaluator, content.decode(errors="replace"), columns),
        )
        for name, content in texts.items()
    ]


def _remove(folder: SharedFolder, names: Sequence[str]) -> None:
    for name in names:
        try:
            with suppress(FileNotFoundError):
                folder.remove(name)
        except OSError as error:
            raise AuditordError(f"{folder.path / name} is accounted for and cannot be removed: {error}") from error
