"""Personal data: pseudonyms for users."""

from collections.abc import Iterable
from typing import Any

from auditord_builtin.privacy import pseudonyms
from auditord_hookspecs import TransformKind, hookimpl


@hookimpl
def auditord_record_transforms() -> Iterable[TransformKind[Any]]:  # Any: each kind has its own configuration model
    """Bring the pseudonyms."""
    yield pseudonyms.KIND
