"""Personal data: pseudonyms for users, and an end to the time for which their names are kept."""

from collections.abc import Iterable
from typing import Any

from auditord_builtin.privacy import pseudonyms, retention
from auditord_hookspecs import PluginKind, TransformKind, hookimpl


@hookimpl
def auditord_record_transforms() -> Iterable[TransformKind[Any]]:  # Any: each kind has its own configuration model
    """Declare the pseudonyms."""
    yield pseudonyms.KIND


@hookimpl
def auditord_plugins() -> Iterable[PluginKind[Any]]:  # Any: the same
    """Declare the retention."""
    yield retention.KIND
