"""Takes in records that anything else has written to files: NDJSON or CSV, dropped into a folder."""

from collections.abc import AsyncGenerator, Iterable
from datetime import timedelta
from typing import Final

from auditord_builtin.files.collecting import collect
from auditord_builtin.files.config import FilesConfig
from auditord_builtin.files.lines import convert
from auditord_hookspecs import CollectorKind, Context, hookimpl
from auditord_hookspecs.checks import Finding, check_folder

__all__ = ["FILES", "FilesConfig", "auditord_collectors"]


async def check(config: FilesConfig, _: Context) -> AsyncGenerator[Finding, None]:
    """Look at the folder that files are dropped into."""
    yield check_folder(config.folder, "make it, and let this daemon write to it")


FILES: Final = CollectorKind(
    name="files",
    config=FilesConfig,
    collect=collect,
    interval=timedelta(minutes=1),
    timeout=timedelta(hours=1),
    convert=convert,
    inventory=collect,
    check=check,
)


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[FilesConfig]]:
    """The kind ``files``."""
    yield FILES
