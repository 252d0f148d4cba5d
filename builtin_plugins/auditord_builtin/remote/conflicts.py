"""The remedy for a record whose id is taken at the destination, once the record there has been read.

The same id with the same start is the same run: what is stored there wins. AUDITOR only says that the id is taken.
"""

from enum import Enum

from auditord_hookspecs import Record
from auditord_hookspecs.records import PROVENANCE_KEYS


class Remedy(Enum):
    """The step to take."""

    NOTHING = "it is there"
    STOP = "set its stop time"
    OTHER_ID = "the id belongs to another run"
    NONE = "the wire contract has no request for it"


def remedy(stored: Record, offered: Record, *, overwrite: bool) -> Remedy:
    """Choose how the destination gets the record.

    Args:
        stored: the record there.
        offered: the record to insert.
        overwrite: True if it is to replace the other one, as far as the contract can do that: the stop time.
    """
    if stored.start_time != offered.start_time:
        return Remedy.NOTHING if _came_back(stored, offered) else Remedy.OTHER_ID
    moved = offered.stop_time is not None and stored.stop_time != offered.stop_time
    # Labels cannot be corrected there; the times of a finished record can.
    only_labels = stored.stop_time is not None and stored.components == offered.components
    if overwrite and not (same_content(stored, offered) or (moved and only_labels)):
        return Remedy.NONE
    return Remedy.STOP if moved and (overwrite or stored.stop_time is None) else Remedy.NOTHING


def same_content(stored: Record, offered: Record) -> bool:
    """Compare meta and components, but for meta keys that say who made the record."""
    return _meta(stored) == _meta(offered) and stored.components == offered.components


def _came_back(stored: Record, offered: Record) -> bool:
    """An open record is posted again when its drone comes back, with a start of its own."""
    return stored.stop_time is None and offered.stop_time is None and same_content(stored, offered)


def _meta(record: Record) -> dict[str, tuple[str, ...]]:
    return {key: values for key, values in (record.meta or {}).items() if key not in PROVENANCE_KEYS}
