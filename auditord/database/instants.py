"""Instants in the form in which databases store them: whole microseconds since 1970, in UTC."""

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The origin of :func:`to_micros`. Code that runs for every record or run subtracts it and divides by MICROSECOND."""

MICROSECOND: Final = timedelta(microseconds=1)

MICROS_PER_DAY: Final = 86_400_000_000


def to_micros(moment: datetime) -> int:
    """Return the exact number of microseconds from 1970 to an aware instant."""
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the instant of a number of microseconds since 1970, in UTC."""
    return EPOCH + timedelta(microseconds=micros)
