"""Collects records from NDJSON or CSV files that other programs drop into a folder."""

from collections.abc import Iterable
from typing import Any

from auditord_hookspecs import CollectorKind, Deferred, hookimpl


@hookimpl
def auditord_collectors() -> Iterable[Deferred[CollectorKind[Any]]]:  # Any: of each kind's model
    yield Deferred.at("files", "auditord_builtin.files.collecting:FILES")
