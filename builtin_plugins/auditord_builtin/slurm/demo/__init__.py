"""Recorded accounting of a real Slurm cluster, and a program that plays sacct over it."""

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from auditord_hookspecs import Window

SACCT: Final = Path(__file__).with_name("sacct.py")
"""To be run as ``python -IS``; it needs nothing but the standard library."""

RECORDED: Final = Window(datetime(2026, 11, 20, 10, 17, 29, tzinfo=UTC), datetime(2026, 11, 20, 10, 20, 2, tzinfo=UTC))
"""The ends of the recorded jobs."""


def replay() -> Mapping[str, Any]:  # Any: options as a file would give them
    """Options of an instance that collects the recorded jobs, all in one query, however long ago they ran."""
    return {
        "sacct": [sys.executable, "-IS", str(SACCT)],
        "earliest_datetime": RECORDED.start.isoformat(),
        "slice": "36500d",
        "sites": [{"name": "demo-site"}],
    }
