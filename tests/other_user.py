"""Another user of this host, who has no rights but those of a folder that he stands in."""

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

NOBODY: Final = 65_534

needs_root: Final = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


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
