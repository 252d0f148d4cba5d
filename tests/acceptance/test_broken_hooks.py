"""The real process beside broken distributions: it says whose fault it is, starts nothing, and knows a way out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import third_party

pytestmark = pytest.mark.slow  # some ten seconds together

BROKEN = {
    "does not import": ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
    "leaves": ("import sys\nsys.exit('goodbye')\n", "SystemExit: goodbye"),
    "duplicate kind": (
        (
            "from auditord_hookspecs import *\n"
            "async def collect(config, context):\n    yield Batch()\n"
            "@hookimpl\n"
            "def auditord_collectors():\n    yield CollectorKind(name='slurm', config=RunConfig, collect=collect)\n"
        ),
        "slurm",
    ),
    "wrong colour": (
        "from auditord_hookspecs import hookimpl\n@hookimpl\nasync def auditord_collectors():\n    yield 1\n",
        "async",
    ),
    "unknown hook": (
        "from auditord_hookspecs import hookimpl\n@hookimpl\ndef auditord_colectors():\n    yield 1\n",
        "auditord_collectors",
    ),
}


@pytest.fixture(params=list(BROKEN))
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A folder for PYTHONPATH with an installed distribution, and what the operator must be shown."""
    source, message = BROKEN[request.param]
    third_party.install(tmp_path, source)
    return tmp_path, message


def auditord(folder: Path, command: str, **hooks: object) -> "subprocess.CompletedProcess[str]":
    file = folder / "auditord.yml"
    file.write_text(json.dumps({"state_dir": str(folder / "state"), "hooks": hooks}))
    line = [sys.executable, "-m", "auditord", command, "--config", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, env=environment)


def test_the_daemon_refuses_to_start_and_names_the_distribution(broken: tuple[Path, str]) -> None:
    folder, message = broken
    done = auditord(folder, "run")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for text in (message, "auditord_thirdparty", "auditord-thirdparty 4.5.6", "hooks.disabled"):
        assert text in done.stderr
    assert not (folder / "state").exists()  # it has touched nothing


def test_hooks_still_lists_everything_and_says_what_is_wrong(broken: tuple[Path, str]) -> None:
    folder, message = broken
    done = auditord(folder, "hooks")
    assert (done.returncode, "auditord_builtin.slurm" in done.stdout, message in done.stderr) == (1, True, True)


def test_the_way_out_is_to_disable_it(broken: tuple[Path, str]) -> None:
    folder, _ = broken
    done = auditord(folder, "hooks", disabled=["thirdparty"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "(disabled)" in done.stdout


POISONER = """
from datetime import UTC, datetime
from auditord_hookspecs import *

START = datetime(2026, 1, 1, tzinfo=UTC)

def record(name, amount=1, meta=None):
    return Record(name, START, (Component("Cores", amount, ()),), START, meta)

def slipped_through(name):
    value = record("x")
    import msgspec
    msgspec.structs.force_setattr(value, "record_id", name)
    return value

async def collect(config, context):
    poison = [record("fraction", 1.5), record("text", meta={"site_id": "s"}), slipped_through("nul\\0"),
              slipped_through("e" + "\\u0301" * 2_000), slipped_through("")]
    good = [record(f"good-{number}") for number in range(20)]
    yield Batch(records=[*good[:10], *poison, *good[10:]], checkpoint=1)

@hookimpl
def auditord_collectors():
    yield CollectorKind(name="poisoner", config=RunConfig, collect=collect)
"""


def test_poison_in_a_collectors_batch_is_set_aside_alone(tmp_path: Path) -> None:
    third_party.install(tmp_path, POISONER)
    document = {"state_dir": str(tmp_path / "state"), "collectors": {"thirdparty": {"kind": "poisoner"}}}
    (tmp_path / "auditord.yml").write_text(json.dumps(document))

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        line = [sys.executable, "-m", "auditord", *arguments, "--config", str(tmp_path / "auditord.yml")]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, env=environment)

    collected = run("collect", "thirdparty")
    assert (collected.returncode, "20 records; 5 quarantined" in collected.stderr) == (0, True), collected.stderr
    stored = json.loads(run("records", "--output", "json").stdout)
    assert sorted(each["record_id"] for each in stored) == sorted(f"good-{number}" for number in range(20))
    kept = json.loads(run("quarantine", "list", "--output", "json").stdout)
    assert [(entry["task"], entry["stage"]) for entry in kept] == [("thirdparty", "record")] * 5
    assert all(entry["reason"] for entry in kept)
