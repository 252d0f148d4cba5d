"""Takes in records that anything else has written to files: NDJSON or CSV, dropped into a folder."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from auditord_builtin.files.collecting import collect
from auditord_builtin.files.config import FilesConfig
from auditord_builtin.files.lines import convert
from auditord_hookspecs import CollectorKind, hookimpl

__all__ = ["FILES", "FilesConfig", "auditord_collectors"]

FILES: Final = CollectorKind(
    name="files",
    config=FilesConfig,
    collect=collect,
    interval=timedelta(minutes=1),
    timeout=timedelta(hours=1),
    convert=convert,
)


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[FilesConfig]]:
    """The kind ``files``."""
    yield FILES
