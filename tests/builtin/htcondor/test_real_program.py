"""condor_history as a program on PATH, run by the real daemon: killed at random moments, and misbehaving."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("classad2", reason="pip install 'auditord[htcondor]'")

from auditord_builtin.htcondor.collecting import HTCONDOR
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_hookspecs import CommandFailed
from tests.auditord_process import stored_ids
from tests.builtin.htcondor.history_player import EPOCH, Player
from tests.builtin.htcondor.recordings import THRICE, in_history, recorded_ads
from tests.real_context import RealContext

PATIENCE = 60.0
NOW = datetime.fromtimestamp(EPOCH, UTC)
PLAYER = Path(__file__).with_name("history_player.py")


@pytest.fixture
def pool(tmp_path: Path) -> Player:
    program = tmp_path / "bin" / "condor_history"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {PLAYER} {tmp_path} "$@"\n')
    program.chmod(0o755)
    return Player(tmp_path)


@pytest.fixture
def _on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def config(**options: Any) -> HTCondorConfig:
    earliest = NOW - timedelta(days=1)
    return HTCondorConfig.model_validate({"schedd_names": ["s1"], "earliest_datetime": earliest, **options})


@pytest.mark.anyio
@pytest.mark.usefixtures("_on_path")
@pytest.mark.parametrize("through", [(), ("sh", "-c")])
async def test_it_is_run_without_a_shell_and_through_one(pool: Player, through: tuple[str, ...]) -> None:
    job = pool.add("s1", 1, Owner="alice; $(touch x)")
    context = RealContext(moment=NOW)
    chosen = config(through=through, constraint='Owner =!= "o\'neill $HOME"')
    [record] = await context.keep(HTCONDOR.collect(chosen, context))
    assert record.record_id == f"htcondor-{job}"
    assert (record.meta or {})["user_id"] == ("alice; $(touch x)",)


@pytest.mark.anyio
@pytest.mark.usefixtures("_on_path")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"hang": True}, "was killed after 1 s"),
        ({"fail": True}, "Failed to receive remote ad"),
        ({"cut": 0.5}, "cut off"),
        ({"exit": 3}, "exit code 3"),
    ],
)
async def test_failures_leave_the_checkpoint(pool: Player, fault: dict[str, Any], message: str) -> None:
    pool.add("s1", 1)
    other = pool.add("s2", 1)
    pool.disturb(s1=fault)
    context = RealContext(moment=NOW)
    quick = {"query_timeout": "1s"} if "hang" in fault else {}
    with pytest.raises(CommandFailed, match=message):
        await context.keep(HTCONDOR.collect(config(schedd_names=["s1", "s2"], **quick), context))
    assert context.checkpoint["schedds"]["s1"]["until"] is None
    assert list(context.checkpoint["schedds"]["s2"]["anchors"]) == [f"{other} at {EPOCH + 1}"]


@contextmanager
def daemon(folder: Path) -> Generator["subprocess.Popen[bytes]", None, None]:
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder)}
    command = [sys.executable, "-m", "auditord", "run", "--config", str(folder / "auditord.yml")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], object], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.02)


def is_ready(folder: Path) -> "re.Match[str] | None":
    return re.search(r"is ready: (\S+)", (folder / "log").read_text())


@pytest.mark.slow
def test_a_daemon_that_is_killed_again_and_again_loses_and_doubles_nothing(pool: Player) -> None:
    folder, chance = pool.folder, random.Random(4)  # noqa: S311 a test's dice
    collector = {"kind": "htcondor", "schedd_names": ["s1", "s2"], "interval": "1s"}
    collector["earliest_datetime"] = (NOW - timedelta(days=1)).isoformat()
    document = {"state_dir": str(folder / "state"), "api": {"listen": ["127.0.0.1:0"]}}
    (folder / "auditord.yml").write_text(json.dumps({**document, "collectors": {"pool": collector}}))
    expected: list[str] = []
    for turn in range(6):
        for schedd in ("s1", "s2"):
            expected += [f"htcondor-{pool.add(schedd, turn * 20 + number)}" for number in range(1, 21)]
        pool.disturb(s1=chance.choice([{}, {"fail": True}, {"cut": 0.7}, {"cap": 15}]))
        with daemon(folder) as process:
            wait_until(lambda: is_ready(folder), folder)
            time.sleep(chance.uniform(0, 1.5))  # the instant of the kill is what is varied
            process.kill()
    pool.disturb()
    with daemon(folder) as process:
        wait_until(lambda: is_ready(folder) and len(stored_ids(folder)) >= len(expected), folder)
        ready = is_ready(folder)
        assert ready is not None
        with urllib.request.urlopen(f"{ready[1]}/records", timeout=PATIENCE) as answer:  # noqa: S310 our own server
            found = re.findall(r'"record_id":"([^"]+)"', answer.read().decode())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, (folder / "log").read_text()
    assert sorted(found) == sorted(expected)


def auditord(folder: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command on the configuration in the folder."""
    command = [sys.executable, "-m", "auditord", *arguments, "--config", str(folder / "auditord.yml")]
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder), **variables}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def write_config(folder: Path, **collector: Any) -> None:
    document = {"state_dir": str(folder / "state"), "api": {"listen": ["127.0.0.1:0"]}}
    options = {"kind": "htcondor", "earliest_datetime": "2026-11-01T00:00:00Z", **collector}
    (folder / "auditord.yml").write_text(json.dumps({**document, "collectors": {"pool": options}}))


def test_variables_reach_condor_history(pool: Player) -> None:
    folder = pool.folder
    program = folder / "bin" / "condor_history"
    program.write_text(f'#!/bin/sh\necho "$CONDOR_CONFIG $_CONDOR_X $TZ" > {folder}/seen\n')
    write_config(folder)
    assert auditord(folder, "collect", "pool", "--dry-run", CONDOR_CONFIG="/etc/mine").returncode == 0
    assert (folder / "seen").read_text() == "/etc/mine  UTC\n"
    write_config(folder, environment={"CONDOR_CONFIG": "/etc/condor-ce", "_CONDOR_X": "1", "TZ": "CET"})
    assert auditord(folder, "collect", "pool", "--dry-run", CONDOR_CONFIG="/etc/mine").returncode == 0
    assert (folder / "seen").read_text() == "/etc/condor-ce 1 UTC\n"


def test_the_difference_between_two_ads_of_a_job_is_listed(pool: Player) -> None:
    folder = pool.folder
    (folder / "history").write_text(in_history(*reversed(recorded_ads(THRICE))))
    write_config(folder, history_paths=[str(folder / "history")], interval="1s")
    with daemon(folder) as process:
        wait_until(lambda: len(stored_ids(folder)) == 1, folder)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, (folder / "log").read_text()
    listed = auditord(folder, "records", "--differences")
    assert listed.returncode == 0, listed.stderr
    assert "htcondor-ap1@example.org#3.21#1795332606" in listed.stdout
    kept = auditord(folder, "records", "--output", "json")
    assert '"runtime":0' in kept.stdout.replace(" ", ""), (kept.stdout, kept.stderr)
