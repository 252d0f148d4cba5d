"""Slurm's programs work in what the unit leaves a process: its system calls, address families and user namespace.

The folders that the unit hides or protects are not part of it; the daemon itself is tried with the RPM.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Generator, Sequence
from ctypes.util import find_library
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tests.slurm_jobs import CLUSTER, missing_slurm

ROOT: Final = Path(__file__).parents[3]
KERNEL: Final = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which needs root"),
    pytest.mark.skipif(KERNEL < (6, 3), reason="needs Linux 6.3 (PR_SET_MDWE)"),
    pytest.mark.skipif(find_library("seccomp") is None, reason="needs libseccomp"),
]


@pytest.fixture(scope="module")
def box() -> Generator[Sequence[str], None, None]:
    """The sandbox and the unit where everybody may read them, which a checkout is not."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        copies = [shutil.copy(ROOT / name, folder) for name in ("tests/sandbox.py", "etc/auditord.service")]
        yield ["/usr/bin/python3", *copies]


def boxed(box: Sequence[str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run in the sandbox as one of the users of the test's Slurm."""
    become = ["setpriv", "--reuid=alice", "--regid=atlas", "--clear-groups"]
    return subprocess.run([*become, *box, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("sacct", "--version"), "slurm"),
        (
            ("sacct", "--allusers", "--parsable", "--format=JobID,User,State", "--starttime=now-1hour"),
            "JobID|User|State",
        ),
        (("scontrol", "show", "config"), "ClusterName"),
        (("scontrol", "show", "partition", "short"), "PartitionName=short"),
        (("sacctmgr", "--noheader", "--parsable2", "show", "cluster"), CLUSTER),
    ],
)
def test_slurms_programs_work(box: Sequence[str], words: tuple[str, ...], expected: str) -> None:
    if (missing := missing_slurm()) is not None:
        pytest.skip(missing)
    done = boxed(box, *words)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("unshare", "--mount", "true"), "Operation not permitted"),
        (("/usr/bin/python3", "-c", "import socket; socket.socket(socket.AF_NETLINK)"), "not supported by protocol"),
        (("/usr/bin/python3", "-c", "import mmap; mmap.mmap(-1, 4096, prot=7)"), "PermissionError"),
    ],
)
def test_it_is_a_sandbox(box: Sequence[str], words: tuple[str, ...], refused: str) -> None:
    done = boxed(box, *words)
    assert done.returncode != 0
    assert refused in done.stderr
