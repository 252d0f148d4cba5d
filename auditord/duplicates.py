"""The policy for a second record with a known id, shared by the configuration, the store and the web."""

from enum import Enum


class Duplicates(Enum):
    """The policy for a second record with a known id (``api.duplicates``)."""

    SAME_RUN = "same-run"
    """A record with the same start time is the same run, and the stored record wins. Other start times are refused."""
    REFUSE = "refuse"
    """Every known id is refused, as AUDITOR does."""
    IGNORE = "ignore"
    """Every known id is accepted and changes nothing (but an open record is still closed)."""
