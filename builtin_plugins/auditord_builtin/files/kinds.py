"""The declaration of the kind ``files``."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Final

from auditord_builtin.files.collecting import collect
from auditord_builtin.files.config import FilesConfig
from auditord_builtin.files.lines import convert
from auditord_hookspecs import CollectorKind, Context
from auditord_hookspecs.checks import Finding, check_folder


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
"""The folder is looked at every minute.

Its inventory reads it by the same function.
"""
