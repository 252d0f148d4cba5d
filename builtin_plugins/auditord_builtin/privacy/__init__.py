"""Personal data: pseudonyms for users, and an end to the time for which their names are kept."""

from collections.abc import Iterable
from typing import Any

from auditord_hookspecs import Deferred, PluginKind, TransformKind, hookimpl


@hookimpl
def auditord_record_transforms() -> Iterable[Deferred[TransformKind[Any]]]:  # Any: of each kind's model
    """Declare the pseudonyms."""
    yield Deferred("pseudonyms", _pseudonyms)


def _pseudonyms() -> TransformKind[Any]:
    from auditord_builtin.privacy import pseudonyms  # noqa: PLC0415 when it is configured

    return pseudonyms.KIND


@hookimpl
def auditord_plugins() -> Iterable[Deferred[PluginKind[Any]]]:  # Any: the same
    """Declare the retention."""
    yield Deferred("retention", _retention)


def _retention() -> PluginKind[Any]:
    from auditord_builtin.privacy import retention  # noqa: PLC0415 when it is configured

    return retention.KIND
