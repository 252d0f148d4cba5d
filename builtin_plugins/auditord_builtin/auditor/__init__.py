"""AUDITOR as a system to move away from: its records, its server's configuration and its server's environment.

``postgres``, ``rest`` and ``parquet`` read rows from a database, a server and an archive. ``conversion`` makes records
of them and watches their units. ``server_config`` translates options; ``kinds`` declares it all.
"""

from collections.abc import Iterable
from typing import Any

from auditord_hookspecs import Deferred, ImporterKind, hookimpl


@hookimpl
def auditord_importers() -> Iterable[Deferred[ImporterKind[Any]]]:  # Any: its model
    """Bring the kind ``auditor``."""
    yield Deferred.at("auditor", "auditord_builtin.auditor.kinds:AUDITOR")
