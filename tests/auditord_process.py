"""An auditord with a store of SQLite in another process."""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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
