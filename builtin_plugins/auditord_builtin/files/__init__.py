"""Takes in records that anything else has written to files: NDJSON or CSV, dropped into a folder."""

from collections.abc import Iterable
from typing import Any

from auditord_hookspecs import CollectorKind, Deferred, hookimpl


@hookimpl
def auditord_collectors() -> Iterable[Deferred[CollectorKind[Any]]]:  # Any: of each kind's model
    """The kind ``files``."""
    yield Deferred("files", _files)


def _files() -> CollectorKind[Any]:
    from auditord_builtin.files.kinds import FILES  # noqa: PLC0415 when it is configured

    return FILES
