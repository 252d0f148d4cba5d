"""Another user of this host, who has no rights but those of a folder that he stands in."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

NOBODY: Final = 65_534

IS_ROOT: Final = os.geteuid() == 0

needs_root: Final = pytest.mark.skipif(not IS_ROOT, reason="only root can act as another user")


def give_to_nobody(folder: Path) -> Path:
    """Make a folder that nobody owns and everybody may write, as a drop folder for users."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    os.chown(folder, NOBODY, NOBODY)
    return folder


def as_nobody(folder: Path, script: str) -> None:
    """Run lines of shell in the folder as nobody, who could not reach it by its path."""
    subprocess.run(
        ["/bin/sh", "-euc", script], cwd=folder, user=NOBODY, group=NOBODY, extra_groups=(), check=True, env={}
    )


_CONNECTING: Final = """
import os, socket, sys
asked, path, user = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])
os.chdir(os.path.dirname(path))
os.setgroups([]); os.setgid(user); os.setuid(user)
while asked.recv(1):
    with socket.socket(socket.AF_UNIX) as made:
        try:
            made.connect(os.path.basename(path))
            socket.send_fds(asked, [b"+"], [made.fileno()])
        except OSError as error:
            asked.send(os.strerror(error.errno).encode())
"""


@contextmanager
def connecting_as_nobody(path: Path) -> Generator[Callable[[], socket.socket], None, None]:
    """A maker of connections to a unix socket whose other end sees nobody, which the kernel notes as they are made.

    A connection that is refused raises :class:`PermissionError`.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-Ic", _CONNECTING, str(there.fileno()), str(path), str(NOBODY)]
    with here, there, subprocess.Popen(command, pass_fds=[there.fileno()]) as child:
        there.close()

        def connect() -> socket.socket:
            here.send(b"?")
            said, descriptors, _, _ = socket.recv_fds(here, 200, 1)
            if not descriptors:
                raise PermissionError(said.decode() or "the connecting process has ended")
            return socket.socket(fileno=descriptors[0])

        yield connect
        here.shutdown(socket.SHUT_RDWR)
        assert child.wait(30) == 0
