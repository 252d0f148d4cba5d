"""The released clients of AUDITOR, unmodified, against the real server over a real store.

``tests/pyauditor-versions`` has ``PYAUDITOR_TEST_PYTHON`` name an interpreter with another version of python-auditor.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from auditord.duplicates import Duplicates

SCENARIO = Path(__file__).with_name("client_scenario.py")
PYTHON = os.environ.get("PYAUDITOR_TEST_PYTHON", sys.executable)


@pytest.mark.parametrize(
    ("kind", "duplicates", "store_url"),
    [
        ("async", Duplicates.SAME_RUN, "sqlite"),
        ("async", Duplicates.REFUSE, "postgresql"),
        ("blocking", Duplicates.SAME_RUN, "sqlite"),
        ("queued", Duplicates.REFUSE, "sqlite"),
        ("sending", Duplicates.SAME_RUN, "sqlite"),
    ],
    indirect=["store_url"],
)
def test_python_auditor_works(
    kind: str, duplicates: Duplicates, start_server: Callable[[Duplicates], int], tmp_path: Path
) -> None:
    port = start_server(duplicates)
    arguments = [kind, duplicates.value, str(port), str(tmp_path)]
    done = subprocess.run([PYTHON, str(SCENARIO), *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
