"""An auditord with a store of SQLite in another process."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

_ALL: Final = "SELECT record_id FROM records"
_FINISHED: Final = "SELECT record_id FROM records WHERE stop_time IS NOT NULL"

SERVER: Final = Path(__file__).parent / "integration" / "web" / "server_process.py"


@contextmanager
def auditord_process(folder: Path) -> Generator[str, None, None]:
    """Run one on a folder; its URL."""
    command = [sys.executable, str(SERVER), str(folder), f"sqlite:///{folder}/records.db", "same-run", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())[0]
        finally:
            process.terminate()
        assert process.wait(20) == 0


def stored_ids(folder: Path, *, finished: bool = False) -> list[str]:
    """The ids in the record store of a daemon; none while it is not there."""
    file = folder / "state" / "records.db"
    if not file.exists():
        return []
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)) as connection:
        try:
            return [name for (name,) in connection.execute(_FINISHED if finished else _ALL)]
        except sqlite3.OperationalError:  # not migrated yet
            return []
