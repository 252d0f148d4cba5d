"""The present instant; the one place where commands read the clock."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Now, aware and in UTC."""
    return datetime.now(UTC)
