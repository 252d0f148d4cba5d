"""Collect jobs from ``PER_JOB_HISTORY_DIR``, in which HTCondor writes one file per job."""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Final

import msgspec
from anyio import to_thread
from msgspec.structs import replace

from auditord_builtin.htcondor.ads import JobAd
from auditord_builtin.htcondor.choosing import classify, select_ads
from auditord_builtin.htcondor.evaluation import read_ad
from auditord_builtin.htcondor.query import Source, list_columns
from auditord_hookspecs import AuditordError, Batch
from auditord_hookspecs.folders import SharedFolder, UnsafePath

_CHUNK: Final = 1_000

_LONGEST: Final = 16 << 20

_REMEMBERED: Final = timedelta(days=30)
"""The time for which a file that could not be removed does not count as new. After that it is sent again: a no-op."""


class JobFile(msgspec.Struct, frozen=True):
    """A job's file. The key contains a hash of the text, since a later job can reuse a file name."""

    name: str
    key: str
    ad: JobAd


async def collect_folder(source: Source) -> AsyncIterator[Batch]:
    """Collect the jobs in ``per_job_history_dir``, and remove the files that earlier runs accounted for.

    Raises:
        AuditordError: the folder or a file cannot be read, or a file cannot be removed.
    """
    context, path = source.context, source.config.per_job_history_dir
    if path is None:
        return
    try:
        with SharedFolder.opened(path) as folder:
            remaining = iter(await to_thread.run_sync(_list, folder))
            while chunk := list(islice(remaining, _CHUNK)):
                texts, refused = await to_thread.run_sync(_read_files, folder, chunk)
                files = await to_thread.run_sync(_parse_files, source, texts, abandon_on_cancel=True)
                for unsafe in refused:
                    context.log.error("%s", unsafe)
                if source.again:
                    yield await classify(source, select_ads(source, [file.ad for file in files]))
                    continue
                known = await context.find_seen([file.key for file in files])
                if not context.dry_run:
                    await to_thread.run_sync(_remove, folder, [file.name for file in files if file.key in known])
                new = [file for file in files if file.key not in known]
                batch = await classify(source, [file.ad for file in new])
                until = context.now() + _REMEMBERED
                yield replace(batch, seen={**batch.seen, **dict.fromkeys((file.key for file in new), until)})
    except OSError as error:
        raise AuditordError(f"cannot read PER_JOB_HISTORY_DIR {path}: {error}") from error


def _list(folder: SharedFolder) -> list[str]:
    """Return the sorted file names. While HTCondor writes a file, its name begins with ``.history.``."""
    return sorted(name for name in folder.names() if name.startswith("history."))


def _read_files(folder: SharedFolder, names: Sequence[str]) -> tuple[dict[str, bytes], list[UnsafePath]]:
    """Return the contents by name, and errors for unsafe files. HTCondor creates neither links nor FIFOs there."""
    texts: dict[str, bytes] = {}
    refused: list[UnsafePath] = []
    for name in names:
        try:
            with folder.open_file(name) as file:
                content = file.read(_LONGEST + 1)
        except UnsafePath as error:
            refused.append(error)
            continue
        if len(content) <= _LONGEST:
            texts[name] = content
        else:
            text = f"{folder.path / name}: is larger than {_LONGEST >> 20} MiB: that is not a job's ad; check it"
            refused.append(UnsafePath(text))
    return texts, refused


def _parse_files(source: Source, texts: Mapping[str, bytes]) -> list[JobFile]:
    columns = list_columns(source.config)
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
            raise AuditordError(f"{folder.path / name} is accounted for, but cannot be removed: {error}") from error
