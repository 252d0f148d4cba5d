"""A command of auditord that is killed at its N-th step on files; a program of its own, for :func:`run_killed`."""

import os
import signal
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Final

STEPS: Final = {
    *("open", "close", "write", "fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "copyfile", "connect"),
    *("execute", "executemany", "backup", "sendfile", "ftruncate", "pwrite", "fetchone", "fetchall", "fetchmany"),
    *("send_query", "send_query_params", "send_query_prepared", "get_result", "fork_exec", "waitpid"),
}
"""Names of functions in C that open, read or change files, speak to PostgreSQL, or run other programs."""


def run_killed(step: int, *arguments: str) -> int | None:
    """Run a command and kill it before a step (0: never); returns its number of steps, or None if it was killed.

    Raises:
        AssertionError: it failed by itself.
    """
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "tests.killed_at_step", str(step), *arguments],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return int(done.stderr.rpartition("steps ")[2])


def main(step: int, *arguments: str) -> None:
    """Run a command and kill this process at a step of it."""
    from auditord.cli import auditord  # noqa: PLC0415 its imports are no steps

    import_module(f"auditord.cli.{arguments[2]}")
    steps = 0

    def count(_frame: FrameType, event: str, function: Any) -> None:  # Any: any function
        nonlocal steps
        if event == "c_call" and function.__name__ in STEPS:
            steps += 1
            if steps == step:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(count)
    sys.setprofile(count)
    auditord(arguments, standalone_mode=False)
    sys.setprofile(None)
    sys.stderr.write(f"steps {steps}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
