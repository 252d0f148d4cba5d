"""The real daemon as a process: started by a command, killed at the end of a test, found by its log."""

import re
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PATIENCE: Final = 60.0
"""Seconds to wait for what a healthy daemon does at once."""


def wait_until(condition: Callable[[], object], describe: Callable[[], str] = str, seconds: float = PATIENCE) -> None:
    """Look every 10 ms, after half a second less often; fail with the description when the time is up.

    A look at a database takes half a millisecond of CPU time, and most tests that run at the same time wait, too.
    """
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        assert waited < seconds, describe()
        time.sleep(min(max(0.01, waited / 50), 0.05))


class DaemonProcess:
    """Daemons that run one after another and write to one log.

    Args:
        log: the file for their output; each daemon begins it anew.
        environment: theirs, the whole of it.

    Attributes:
        patience: seconds after which a command is taken to hang.
    """

    patience = PATIENCE

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self.environment = dict(environment)

    @contextmanager
    def running(self, command: Sequence[str | Path]) -> Generator["subprocess.Popen[bytes]", None, None]:
        """The running process; killed at the end if it is still there."""
        with self.log.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def run(self, command: Sequence[str | Path]) -> "subprocess.CompletedProcess[str]":
        """A command that ends by itself."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=self.patience
        )

    def text(self) -> str:
        """The log of the present daemon."""
        return self.log.read_text()

    def last_words(self) -> str:
        """The end of the log, for messages of failed tests."""
        return self.text()[-2_000:]

    def url(self) -> str:
        """The address at which the present daemon listens."""
        wait_until(lambda: "is ready" in self.text(), self.last_words)
        match = re.search(r"is ready: (\S+)", self.text())
        assert match is not None
        return match[1]
