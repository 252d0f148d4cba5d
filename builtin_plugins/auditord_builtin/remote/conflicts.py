"""What becomes of a record whose id is taken at the destination, once the record there has been read.

The same id with the same start is the same run: what is stored there wins. AUDITOR only says that the id is taken.
"""

from enum import Enum

from auditord_hookspecs import Record
from auditord_hookspecs.records import PROVENANCE_KEYS


class Remedy(Enum):
    """What to do."""

    NOTHING = "it is there"
    STOP = "set its stop time"
    OTHER_ID = "the id belongs to another run"
    NONE = "the wire contract has no request for it"


def remedy(stored: Record, offered: Record, *, overwrite: bool) -> Remedy:
    """What brings the destination to where it should be.

    Args:
        stored: what is there.
        offered: what was to be inserted.
        overwrite: whether it is to replace what is there, as far as the contract can do that: the stop time.
    """
    if stored.start_time != offered.start_time:
        return Remedy.NOTHING if _came_back(stored, offered) else Remedy.OTHER_ID
    moved = offered.stop_time is not None and stored.stop_time != offered.stop_time
    if overwrite and not (same_content(stored, offered) or (moved and _differ_in_labels(stored, offered))):
        return Remedy.NONE
    return Remedy.STOP if moved and (overwrite or stored.stop_time is None) else Remedy.NOTHING


def _differ_in_labels(stored: Record, offered: Record) -> bool:
    """Whether two finished records differ in labels (which cannot be corrected there) and times alone (which can)."""
    return stored.stop_time is not None and stored.components == offered.components


def same_content(stored: Record, offered: Record) -> bool:
    """Whether meta and components are equal, but for meta keys that say who made the record."""
    return _meta(stored) == _meta(offered) and stored.components == offered.components


def _came_back(stored: Record, offered: Record) -> bool:
    """An open record is posted again when its drone comes back, with a start of its own."""
    return stored.stop_time is None and offered.stop_time is None and same_content(stored, offered)


def _meta(record: Record) -> dict[str, tuple[str, ...]]:
    return {key: values for key, values in (record.meta or {}).items() if key not in PROVENANCE_KEYS}
