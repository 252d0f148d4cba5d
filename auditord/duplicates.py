"""The meaning of a second record with a known id: one word of the configuration, the store and the web."""

from enum import Enum


class Duplicates(Enum):
    """The meaning of a second record with a known id (``api.duplicates``)."""

    SAME_RUN = "same-run"
    """Same start time: the same run, the stored record wins. Another start time: refused."""
    REFUSE = "refuse"
    """Every known id is refused, as AUDITOR does."""
    IGNORE = "ignore"
    """Every known id is accepted and changes nothing (but an open record is still closed)."""
