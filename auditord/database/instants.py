"""Instants as the databases of this daemon keep them: whole microseconds since 1970, in UTC."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970 of an aware instant, exactly (a float of seconds is not)."""
    span = moment - _EPOCH
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def from_micros(micros: int) -> datetime:
    """The instant of :func:`to_micros`, in UTC."""
    return _EPOCH + timedelta(microseconds=micros)
