"""Transforms act once: what a correction leaves as it is stored has met them before."""

import msgspec

from auditord_hookspecs import Record, Transform
from auditord_hookspecs.records import Meta


def transformed_once(transform: Transform, record: Record, stored: Record) -> Record:
    """Apply the transform to what a correction changes of a stored record, and to nothing else.

    Raises:
        InvalidRecord: the transform refuses the record.
    """
    changed = transform(record)
    components = record.components if record.components == stored.components else changed.components
    return msgspec.structs.replace(changed, components=components, meta=_meta(changed.meta, record.meta, stored.meta))


def _meta(changed: Meta | None, given: Meta | None, stored: Meta | None) -> Meta | None:
    if given == stored or given is None or changed is None:
        return given if given == stored else changed
    known = stored or {}
    return {
        key: given[key] if key in given and given[key] == known.get(key) else values for key, values in changed.items()
    }
