"""The whole system as it is, to be written to without a trace: an overlay over ``/`` in a mount namespace of its own.

What is done there (packages installed, users made) is done for real and is gone when the namespace ends.
"""

import os
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_SET_UP: Final = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$1/root/tmp"
mount -t tmpfs -o mode=0755 tmpfs "$1/root/run"
mount --bind "$2" "$1/root/mnt"
mkdir "$1/root/outside"
cd "$1/root"
pivot_root . outside # not chroot: there is no user namespace to be had in one
cd /
umount -l /outside
echo ready
exec cat
"""


class ScratchRoot:
    """Runs programs in there; use :func:`scratch_root`."""

    def __init__(self, holder: int) -> None:
        self._enter = ["nsenter", f"--target={holder}", "--mount"]
        self._environment = {"PATH": PATH, "LANG": "C.UTF-8"}

    def command(self, *words: str, user: str | None = None) -> list[str]:
        """The command to run outside, so that this is run inside."""
        # Unlike runuser it becomes the program, so that a signal reaches that.
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        return [*self._enter, *become, *words]

    def run(
        self,
        *words: str,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        text: str = "",
        expect: int = 0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, as root or as another user, with nothing but this in its environment."""
        done = subprocess.run(
            self.command(*words, user=user),
            input=text,
            capture_output=True,
            text=True,
            check=False,
            env=self._environment | dict(environment or {}),
        )
        assert done.returncode == expect, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def write(self, path: str, text: str, mode: str = "644") -> None:
        """Make a file, and the folders above it."""
        self.run("sh", "-c", 'mkdir -p "${1%/*}" && cat > "$1" && chmod "$2" "$1"', "sh", path, mode, text=text)


@contextmanager
def scratch_root(folder: Path, shared: Path) -> Generator[ScratchRoot | None, None, None]:
    """The system's copy, made below an empty folder; None where the kernel does not let this process make one.

    Args:
        folder: where it is mounted; empty.
        shared: is /mnt in there.
    """
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SET_UP, "sh", str(folder), str(shared)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            ready = os.getuid() == 0 and holder.stdout.readline() == "ready\n"
            yield ScratchRoot(holder.pid) if ready else None
        finally:
            holder.stdin.close()  # ends it, and with it all of its mounts
