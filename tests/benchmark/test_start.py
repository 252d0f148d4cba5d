"""CPU seconds and imported modules of commands, and of a daemon until it is ready; memory of one that idles."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import pytest

from tests.acceptance.daemon_process import DaemonProcess, wait_until
from tests.benchmark.measured import family_cpu_seconds

MOST_CPU_SECONDS: Final = 0.4
MOST_SECONDS_TO_READY: Final = 0.7
MOST_MEGABYTES: Final = 75
COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "--help": ["--help"],
    "status": ["status"],
    "records": ["records"],
    "trigger": ["trigger", "slurm", "--url", "unix:/nowhere"],
}
CODE: Final = (
    "import sys, auditord.cli\ntry: auditord.cli.main()\nexcept SystemExit: pass\n"
    "print(len(sys.modules), file=sys.stderr)\n"
)


@dataclass(frozen=True)
class Start:
    """CPU seconds (a median), and the number of modules in memory at the end."""

    cpu: float
    modules: int


def configured(folder: Path) -> list[str]:
    file = folder / "auditord.yml"
    file.write_text(
        f"state_dir: {folder}\napi: {{listen: ['127.0.0.1:0']}}\n"
        "collectors: {slurm: {kind: slurm, enabled: false, sites: [{name: A}]}}\n"
    )
    return ["--config", str(file)]


def started(command: Sequence[str], rounds: int) -> Start:
    seconds, modules = list[float](), 0
    for _ in range(rounds):
        before = os.times()
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
        modules = int(ended.stderr.splitlines()[-1])
    return Start(median(seconds), modules)


def measure_commands(folder: Path, rounds: int) -> Mapping[str, Start]:
    options = configured(folder)
    bare = started([sys.executable, "-c", "import sys; print(len(sys.modules), file=sys.stderr)"], rounds)
    measured = {
        name: started([sys.executable, "-c", CODE, *options, *words], rounds) for name, words in COMMANDS.items()
    }
    for name, start in measured.items():
        print(  # noqa: T201 what a benchmark is for
            f"\nauditord {name}: {start.cpu:.2f} s CPU ({start.cpu / bare.cpu:.1f} times python -c pass), "
            f"{start.modules} modules",
            end="",
        )
    return measured


@dataclass(frozen=True)
class Idle:
    """A daemon that is ready: seconds on the clock, CPU seconds until then, and resident memory."""

    seconds: float
    cpu: float
    megabytes: float


def measure_daemon(folder: Path, rounds: int) -> Idle:
    daemon = DaemonProcess(folder / "log", {"HOME": str(folder), "PATH": os.environ["PATH"]})
    program = Path(sys.executable).with_name("auditord")
    idle = list[Idle]()
    for _ in range(rounds):
        begun = time.perf_counter()
        with daemon.running([program, "run", *configured(folder)]) as process:
            wait_until(lambda: "is ready" in daemon.text(), daemon.last_words)
            seconds = time.perf_counter() - begun
            idle.append(Idle(seconds, family_cpu_seconds(process.pid), resident_megabytes(process.pid)))
    found = Idle(*(median(getattr(each, name) for each in idle) for name in ("seconds", "cpu", "megabytes")))
    print(  # noqa: T201 what a benchmark is for
        f"\nauditord run: ready after {found.seconds:.2f} s, {found.cpu:.2f} s CPU, {found.megabytes:.0f} MB resident"
    )
    return found


def resident_megabytes(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def test_the_measurements_work(tmp_path: Path) -> None:
    assert all(start.modules > 0 for start in measure_commands(tmp_path, 1).values())
    assert measure_daemon(tmp_path, 1).megabytes > 0


@pytest.mark.benchmark
def test_commands_start_fast(tmp_path: Path) -> None:
    assert max(start.cpu for start in measure_commands(tmp_path, 11).values()) <= MOST_CPU_SECONDS


@pytest.mark.benchmark
def test_the_daemon_starts_fast_and_small(tmp_path: Path) -> None:
    idle = measure_daemon(tmp_path, 7)
    assert idle.seconds <= MOST_SECONDS_TO_READY
    assert idle.megabytes <= MOST_MEGABYTES
