"""A Debian that is booted with systemd as its first process, to be written to without a trace.

Its root is an overlay over the one that tests/services/debian-install makes, on a tmpfs in a mount namespace of its
own. Programs are run in it by entering the namespaces of its first process.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOTS: Final = {
    "bookworm": Path("/var/lib/auditord-test/debian"),
    "trixie": Path("/var/lib/auditord-test/debian-trixie"),
}
"""The product of tests/services/debian-install for a release."""

_BOOT: Final = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=$3,upperdir=$1/upper,workdir=$1/work" "$1/root"
exec systemd-nspawn --quiet --directory="$1/root" --register=no --keep-unit --boot --private-network --console=pipe \
  --bind-ro="$2:/mnt"
"""
_SECONDS: Final = 120
"""Time for the boot, and for anything else that is waited for."""


class BootedDebian:
    """Runs programs in there; use :func:`booted_debian`."""

    def __init__(self, first_process: int) -> None:
        self._enter = ["nsenter", f"--target={first_process}", "--all", "env", "-i", "LANG=C.UTF-8"]
        self._enter += ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]

    def run(self, *words: str, user: str | None = None, text: str = "", check: bool = True) -> str:
        """Run a program to its end, as root or as another user; returns all that it printed."""
        become = ["runuser", "-u", user, "--"] if user else []
        done = subprocess.run(
            [*self._enter, *become, *words],
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{words}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout

    def write(self, path: str, text: str, mode: str = "644") -> None:
        """Make a file, and the folders above it."""
        self.run("sh", "-c", 'mkdir -p "${1%/*}" && cat > "$1" && chmod "$2" "$1"', "sh", path, mode, text=text)

    def properties(self, unit: str, *names: str) -> dict[str, str]:
        """Properties of a unit, as systemd says them."""
        lines = self.run("systemctl", "show", "--property", ",".join(names), unit).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def until(self, unit: str, **wanted: str) -> None:
        """Wait until a unit has these properties."""
        self.wait(
            wanted, lambda: self.properties(unit, *wanted), lambda: self.run("journalctl", "-n", "30", "-u", unit)
        )

    def wait(self, wanted: object, look: Callable[[], object], explain: Callable[[], str] = str) -> None:
        """Wait until a look finds what is wanted."""
        deadline = time.monotonic() + _SECONDS
        while (found := look()) != wanted:
            assert time.monotonic() < deadline, f"{found} is not {wanted}\n{explain()}"
            time.sleep(0.2)


@contextmanager
def booted_debian(
    folder: Path, shared: Path, root: Path = ROOTS["bookworm"]
) -> Generator[BootedDebian | None, None, None]:
    """Boot it below an empty folder, with a folder of the host as /mnt; None where this machine does not allow it."""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _BOOT, "sh"]
    with subprocess.Popen(
        [*command, folder, shared, root], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as holder:
        try:
            first = _first_process(holder)
            yield BootedDebian(first) if first else None
        finally:
            holder.terminate()  # systemd-nspawn asks for an orderly shutdown; the mounts end with it
            try:
                holder.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                for first in _children(holder):  # a system that is still starting may not hear of it
                    os.kill(first, signal.SIGKILL)


def _first_process(holder: subprocess.Popen[bytes]) -> int | None:
    """Its process id on the host, once all of its units have been started."""
    deadline = time.monotonic() + _SECONDS
    while holder.poll() is None and time.monotonic() < deadline:
        for child in _children(holder):
            state = ["nsenter", f"--target={child}", "--all", "systemctl", "is-system-running"]
            done = subprocess.run(state, capture_output=True, text=True, check=False)
            if done.stdout.strip() in {"running", "degraded"}:
                return child
        time.sleep(0.2)
    return None


def _children(holder: subprocess.Popen[bytes]) -> Sequence[int]:
    return [int(word) for word in Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()]
