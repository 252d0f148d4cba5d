"""What a second record with a known id means: one word of the configuration, the store and the web."""

from enum import Enum


class Duplicates(Enum):
    """What a second record with a known id means (``api.duplicates``)."""

    SAME_RUN = "same-run"
    """Same start time: the same run, the stored record wins. Another start time: refused."""
    REFUSE = "refuse"
    """Every known id is refused, as AUDITOR does."""
    IGNORE = "ignore"
    """Every known id is accepted and changes nothing (but an open record is still closed)."""
