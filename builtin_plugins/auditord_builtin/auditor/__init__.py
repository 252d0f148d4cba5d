"""Imports from AUDITOR: its records, and its server's configuration file and environment variables.

``postgres``, ``rest`` and ``parquet`` read rows from a database, a server and an archive. ``conversion`` converts rows
to records and checks their units. ``server_config`` translates options. ``kinds`` declares the importer.
"""

from collections.abc import Iterable
from typing import Any

from auditord_hookspecs import Deferred, ImporterKind, hookimpl


@hookimpl
def auditord_importers() -> Iterable[Deferred[ImporterKind[Any]]]:  # Any: its model
    yield Deferred.at("auditor", "auditord_builtin.auditor.kinds:AUDITOR")
