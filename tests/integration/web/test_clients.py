"""The released clients of AUDITOR, unmodified, against the real server over a real store."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from auditord.duplicates import Duplicates

SCENARIO = Path(__file__).with_name("client_scenario.py")


@pytest.mark.parametrize(
    ("kind", "duplicates", "store_url"),
    [
        ("async", Duplicates.SAME_RUN, "sqlite"),
        ("async", Duplicates.REFUSE, "postgresql"),
        ("blocking", Duplicates.SAME_RUN, "sqlite"),
        ("queued", Duplicates.REFUSE, "sqlite"),
    ],
    indirect=["store_url"],
)
def test_python_auditor_works(
    kind: str, duplicates: Duplicates, start_server: Callable[[Duplicates], int], tmp_path: Path
) -> None:
    port = start_server(duplicates)
    arguments = [kind, duplicates.value, str(port), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(SCENARIO), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
