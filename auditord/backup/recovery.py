"""After a restore, make plugins wait until the collectors have caught up, since sums are still too low.

A plugin that ran then would report less than before the loss, and sites would be paid or judged by its report.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from auditord.database.durable_files import write_durably
from auditord.spool import Spool

FILE: Final = "restored.json"


class Restore(msgspec.Struct, frozen=True):
    """The instant of a restore."""

    at: datetime


def note_restore(state_dir: Path, at: datetime) -> None:
    """Let plugins wait until all collectors have caught up."""
    write_durably(state_dir / FILE, msgspec.json.encode(Restore(at)))


async def collectors_behind(spool: Spool, collectors: Collection[str]) -> Sequence[str]:
    """Return the collectors without a successful run since the restore; empty without a restore."""
    file = spool.state_dir / FILE
    try:
        restored = msgspec.json.decode(file.read_bytes(), type=Restore)
    except FileNotFoundError:
        return ()
    runs = await spool.last_runs()
    last = {name: runs[name][0].last_success for name in collectors if runs.get(name)}
    behind = [name for name in collectors if (success := last.get(name)) is None or success < restored.at]
    if not behind:
        file.unlink(missing_ok=True)
    return behind
