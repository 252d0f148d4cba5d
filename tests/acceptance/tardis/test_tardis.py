"""The released TARDIS with its own plugin for AUDITOR, unmodified: drones live, and a real daemon keeps the records."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord_hookspecs import Component, Record, Score

TARDIS: Final = "cobald-tardis==0.9.0"
NEEDED: Final = (
    # TARDIS pins this client. The rest is what its drones and the plugin import; all that it can use takes minutes.
    "python-auditor==0.10.1",
    *("asyncssh", "asyncstdlib", "cobald", "pydantic<2", "pyotp", "pyyaml", "typing_extensions", "tzlocal"),
)
PATIENCE: Final = 300
DRONES: Final = Path(__file__).with_name("drones.py")


@pytest.fixture(scope="session")
def python() -> Path:
    """The Python of a virtual environment with TARDIS, which is made once and kept for later runs."""
    text = " ".join((sys.version, TARDIS, *NEEDED))
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "auditord-tests" / f"tardis-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        if not (folder / "complete").exists():
            _build(folder / "venv")
            (folder / "complete").touch()
    return folder / "venv" / "bin" / "python"


def _build(venv: Path) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    pip = (str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    commands: Sequence[Sequence[str]] = (
        (sys.executable, "-m", "venv", str(venv)),
        (*pip, "--no-deps", TARDIS),
        (*pip, *NEEDED),
    )
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            _give_up(f"installing it took more than {PATIENCE} s")
        else:
            if done.returncode != 0:
                _give_up((done.stderr.strip().splitlines() or ["pip says nothing"])[-1])


def _give_up(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"TARDIS is needed where CI=true: {reason}")
    pytest.skip(f"{TARDIS} cannot be installed: {reason}")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestDaemon]:
    with running_daemon(tmp_path_factory.mktemp("tardis"), {}) as running:
        yield running


class Tardis:
    """TARDIS on a host of its own, whose plugin talks to the daemon."""

    def __init__(self, python: Path, daemon: TestDaemon, folder: Path) -> None:
        self._python = python
        self._file = folder / "tardis.yml"
        address = urlsplit(daemon.url)
        components = {"small": {"Cores": {"HEPSPEC": 1.2, "BENCHMARK": 3.0}, "Memory": {"BLUBB": 1.4}}}
        auditor = {"host": address.hostname, "port": address.port, "timeout": 10, "components": components}
        machines = {"MachineTypes": ["small"], "MachineMetaData": {"small": {"Cores": 12, "Memory": 100}}}
        sites = [{"name": "TEST", "adapter": "FakeSite"}]
        self._file.write_text(json.dumps({"Plugins": {"Auditor": auditor}, "Sites": sites, "TEST": machines}))

    def live(self, *lives: str) -> Sequence[Mapping[str, Any]]:
        """One drone after the other; an error that the plugin raises ends it, as it would end a drone."""
        command = [str(self._python), "-W", "ignore", str(DRONES), str(self._file), *lives]
        environment = {**os.environ, "TZ": "Europe/Berlin"}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env=environment, cwd=self._file.parent
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def tardis(python: Path, daemon: TestDaemon, tmp_path_factory: pytest.TempPathFactory) -> Tardis:
    return Tardis(python, daemon, tmp_path_factory.mktemp("host"))


def records(daemon: TestDaemon) -> Mapping[str, Record]:
    return {record.record_id: record for record in daemon.records()}


COMPONENTS = {
    "Cores": Component("Cores", 12, (Score("BENCHMARK", 3.0), Score("HEPSPEC", 1.2))),
    "Memory": Component("Memory", 100, (Score("BLUBB", 1.4),)),
}


def in_order(component: Component) -> Component:
    return Component(component.name, component.amount, tuple(sorted(component.scores, key=lambda score: score.name)))


def entered(drone: Mapping[str, Any], state: str) -> Sequence[datetime]:
    """The time when a drone came into a state."""
    return [datetime.fromisoformat(since) for name, since in drone["states"] if name == state]


def test_drones_live_twice_each_from_request_to_down(tardis: Tardis, daemon: TestDaemon) -> None:
    drones = tardis.live("plain", "returning", "plain", "returning")
    kept = records(daemon)
    for drone in drones:
        record = kept[drone["uuid"]]
        assert record.meta == {"site_id": ("TEST",), "user_id": ("tardis",), "group_id": ("tardis",)}
        assert {each.name: in_order(each) for each in record.components} == COMPONENTS
        assert record.start_time == entered(drone, "AvailableState")[0]
        assert [record.stop_time] == entered(drone, "DownState")
    assert len({drone["uuid"] for drone in drones} & kept.keys()) == 4


def test_a_drone_that_returns_is_one_record_from_its_first_start(tardis: Tardis, daemon: TestDaemon) -> None:
    (drone,) = tardis.live("returning")
    first, second = entered(drone, "AvailableState")
    booted = entered(drone, "BootingState")
    assert first < booted[-1] < second
    record = records(daemon)[drone["uuid"]]
    assert (record.start_time, [record.stop_time]) == (first, entered(drone, "DownState"))


def test_a_drone_that_never_was_available_makes_no_record(tardis: Tardis, daemon: TestDaemon) -> None:
    (drone,) = tardis.live("never_available")
    assert len(entered(drone, "DownState")) == 1
    assert drone["uuid"] not in records(daemon)


def test_a_drone_whose_end_was_never_reported_is_found_and_closed(tardis: Tardis, daemon: TestDaemon) -> None:
    (drone,) = tardis.live("lost")
    listed = commands(daemon, "--open", "--older-than", "0s", "--output", "ndjson")
    assert [json.loads(line)["record_id"] for line in listed.stdout.splitlines()] == [drone["uuid"]]
    reason = ("--reason", "TARDIS was restarted without its registry", "--yes")
    closed = commands(daemon, "close", "--older-than", "0s", "--meta", "user_id=tardis", "--runtime", "0s", *reason)
    assert closed.exit_code == 0, closed.output
    record = records(daemon)[drone["uuid"]]
    assert record.stop_time == record.start_time
    assert commands(daemon, "--open", "--output", "ndjson").stdout == ""


def commands(daemon: TestDaemon, *words: str) -> Result:
    config = daemon.state_dir.parent / "auditord.json"
    return CliRunner().invoke(auditord, ["--config", str(config), "records", *words])
