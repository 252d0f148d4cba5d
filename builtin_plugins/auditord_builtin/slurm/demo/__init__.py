"""Recorded accounting of a real Slurm cluster, and a program that plays sacct over it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from auditord_hookspecs import Window

SACCT: Final = Path(__file__).with_name("sacct.py")
"""To be run as ``python -IS``; it needs nothing but the standard library."""

RECORDED: Final = Window(datetime(2026, 11, 20, 10, 17, 29, tzinfo=UTC), datetime(2026, 11, 20, 10, 20, 2, tzinfo=UTC))
"""When the recorded jobs ended."""
