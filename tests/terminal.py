"""A program on a terminal of its own."""

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor


def on_terminal(command: Sequence[str], *, columns: int = 80, only_errors: bool = False) -> tuple[str, str]:
    """The screen of a program on a terminal, and its standard output if that is a pipe.

    Args:
        command: with its arguments.
        columns: the terminal's width.
        only_errors: standard output is a pipe, standard error the terminal.
    """
    leader, follower = pty.openpty()
    environment: Mapping[str, str] = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    terminal = os.fdopen(follower, "wb")
    with os.fdopen(leader, "rb", buffering=0) as screen, ThreadPoolExecutor() as reading:
        shown = reading.submit(_read_all, screen.fileno())  # meanwhile: a terminal takes some KiB, and then waits
        with terminal:  # closed before the reader is waited for, or that would wait for more
            out = subprocess.PIPE if only_errors else terminal
            done = subprocess.run(command, stdout=out, stderr=terminal, env=environment, check=True, timeout=60)
        text = shown.result()
    return text.decode().replace("\r\n", "\n"), (done.stdout or b"").decode()


def _read_all(file: int) -> bytes:
    text = b""
    while chunk := _read(file):
        text += chunk
    return text


def _read(file: int) -> bytes:
    try:
        return os.read(file, 65_536)
    except OSError:  # what Linux says of a terminal that nobody writes to any more
        return b""
