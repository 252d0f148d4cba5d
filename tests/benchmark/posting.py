"""Starts the load generators, each a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.benchmark.measured import HERE

CONNECTIONS: Final = 64


def load(port: int, seconds: float, prefix: str, connections: int = CONNECTIONS) -> dict[str, float]:
    """Post single records for so long; see http_load.py for what it returns."""
    return _run("http_load.py", [str(port), "/record", str(connections), str(seconds), prefix], seconds)


def load_bulk(port: int, bodies: Path, connections: int) -> dict[str, float]:
    """Post every line of a file; see bulk_load.py for what it returns."""
    return _run("bulk_load.py", [str(port), str(connections), str(bodies)], 600)


def _run(program: str, arguments: list[str], seconds: float) -> dict[str, float]:
    command = [sys.executable, str(HERE / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found
