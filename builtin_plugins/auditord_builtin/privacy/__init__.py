"""Personal data: pseudonyms for users, and a limit on how long their names are kept."""

from collections.abc import Iterable
from typing import Any

from auditord_hookspecs import Deferred, PluginKind, TransformKind, hookimpl


@hookimpl
def auditord_record_transforms() -> Iterable[Deferred[TransformKind[Any]]]:  # Any: of each kind's model
    yield Deferred.at("pseudonyms", "auditord_builtin.privacy.pseudonyms:KIND")


@hookimpl
def auditord_plugins() -> Iterable[Deferred[PluginKind[Any]]]:  # Any: the same
    yield Deferred.at("retention", "auditord_builtin.privacy.retention:KIND")
