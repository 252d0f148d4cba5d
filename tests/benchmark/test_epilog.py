"""The cost of ``auditord-epilog`` at the end of every job, against the bare interpreter."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

import pytest

import auditord_builtin.slurm.epilog as package

SCRIPT: Final = Path(package.__file__).with_name("script.py")
BARE: Final = ("/usr/bin/python3", "-IS", "-c", "pass")
LIMIT: Final = 1.3


def without_fsync(folder: Path) -> Path:
    """The script with the disk taken out of it: what is left is ours to answer for."""
    script = folder / "script"
    text = SCRIPT.read_text()
    assert text.count("os.fsync(") == 2
    script.write_text(text.replace("os.fsync(", "abs("))
    script.chmod(0o755)
    return script


def wall_times(commands: Sequence[Sequence[str]], rounds: int) -> list[float]:
    """The median of each command's milliseconds; they take turns, so that a busy machine slows all of them."""
    times: list[list[float]] = [[] for _ in commands]
    for _ in range(rounds):
        for command, measured in zip(commands, times, strict=True):
            begun = time.perf_counter()
            subprocess.run(command, env={"SLURM_JOB_ID": "12", "SLURM_JOB_USER": "alice"}, check=True)
            measured.append((time.perf_counter() - begun) * 1_000)
    return [median(each) for each in times]


def measure(folder: Path, rounds: int) -> float:
    spool = folder / "spool"
    spool.mkdir()
    commands = (BARE, (str(without_fsync(folder)), str(spool)), (str(SCRIPT), str(spool)))
    bare, unsynced, synced = wall_times(commands, rounds)
    assert len(list(spool.iterdir())) == 2 * rounds
    print(  # noqa: T201 what a benchmark is for
        f"\nauditord-epilog: {unsynced:.1f} ms without fsync, {synced:.1f} ms with it; python3 -IS -c pass: "
        f"{bare:.1f} ms, {unsynced / bare:.2f} times less than without fsync"
    )
    return unsynced / bare


def test_the_measurement_works(tmp_path: Path) -> None:
    assert measure(tmp_path, 3) > 0


@pytest.mark.benchmark
def test_it_costs_little_more_than_the_interpreter(tmp_path: Path) -> None:
    assert measure(tmp_path, 300) <= LIMIT
