"""A program on a terminal of its own."""

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence


def on_terminal(command: Sequence[str], *, columns: int = 80, only_errors: bool = False) -> tuple[str, str]:
    """What a program shows on a terminal, and what it writes to standard output if that is a pipe.

    Args:
        command: with its arguments.
        columns: the terminal's width.
        only_errors: standard output is a pipe, standard error the terminal.
    """
    leader, follower = pty.openpty()
    environment: Mapping[str, str] = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    with os.fdopen(leader, "rb", buffering=0) as screen:
        with os.fdopen(follower, "wb") as terminal:
            out = subprocess.PIPE if only_errors else terminal
            done = subprocess.run(command, stdout=out, stderr=terminal, env=environment, check=True, timeout=60)
        text = b""
        while chunk := _read(screen.fileno()):
            text += chunk
    return text.decode().replace("\r\n", "\n"), (done.stdout or b"").decode()


def _read(file: int) -> bytes:
    try:
        return os.read(file, 65_536)
    except OSError:  # what Linux says of a terminal that nobody writes to any more
        return b""
