"""Collects records from files that any other program writes: NDJSON or CSV, dropped into a folder."""

from collections.abc import Iterable
from functools import partial
from pkgutil import resolve_name
from typing import Any

from auditord_hookspecs import CollectorKind, Deferred, hookimpl


@hookimpl
def auditord_collectors() -> Iterable[Deferred[CollectorKind[Any]]]:  # Any: of each kind's model
    """Declare the kind ``files``."""
    yield Deferred("files", partial(resolve_name, "auditord_builtin.files.collecting:FILES"))
