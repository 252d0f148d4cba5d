"""The tools that keep the code in shape are part of the tests: nothing lands that one of them refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        pytest.param(["mypy"], marks=pytest.mark.slow),  # a minute where nothing is cached
        pytest.param(["pyright", "--pythonpath", sys.executable], marks=pytest.mark.slow),
        ["lint-imports"],
    ],
    ids=["ruff check", "ruff format", "mypy", "pyright", "import-linter"],
)
@pytest.mark.timeout(1_200)
def test_the_tree_is_clean(command: list[str]) -> None:
    program, *arguments = command
    done = subprocess.run([BIN / program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
