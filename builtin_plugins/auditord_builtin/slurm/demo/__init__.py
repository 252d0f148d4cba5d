"""Recorded accounting of a real Slurm cluster, and a fake sacct that prints it."""

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from auditord_builtin.slurm.config import META_RULES
from auditord_hookspecs import Window

SACCT: Final = Path(__file__).with_name("sacct.py")
"""The fake sacct. It needs only the standard library and is run as ``python -IS``."""

RECORDED: Final = Window(datetime(2026, 11, 20, 10, 17, 29, tzinfo=UTC), datetime(2026, 11, 20, 10, 20, 2, tzinfo=UTC))
"""The period in which the recorded jobs ended."""


def replay() -> Mapping[str, Any]:  # Any: options as a file would give them
    """Return options for an instance that collects all recorded jobs in one query, however long ago they ran.

    The records have the labels that ``auditord init`` proposes.
    """
    return {
        "sacct": [sys.executable, "-IS", str(SACCT)],
        "earliest_datetime": RECORDED.start.isoformat(),
        "slice": "36500d",
        "sites": [{"name": "demo-site"}],
        "meta": META_RULES,
    }
