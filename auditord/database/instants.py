"""Instants as the databases of this daemon keep them: whole microseconds since 1970, in UTC."""

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The origin of :func:`to_micros`. Code that runs for every record subtracts it and divides by :data:`MICROSECOND`."""

MICROSECOND: Final = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970 of an aware instant, exactly (a float of seconds is not)."""
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant of :func:`to_micros`, in UTC."""
    return EPOCH + timedelta(microseconds=micros)
