"""Jobs whose owners wrote what ends or occupies HTCondor's library: they are quarantined, all others are counted."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("classad2", reason="pip install 'auditord[htcondor]'")

from auditord_builtin.htcondor.collecting import HTCONDOR
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_hookspecs import CommandFailed, Quarantined, Record
from tests.builtin.htcondor.history_player import EPOCH, Player, history_text, job_ad
from tests.builtin.htcondor.recordings import POISON, in_history, recorded_ads
from tests.real_context import RealContext

NOW = datetime.fromtimestamp(EPOCH, UTC)
PLAYER = Path(__file__).with_name("history_player.py")
NAMES = {"GlobalJobId": "s1#9.0#5", "ClusterId": 9}

SEGFAULT = "evalInEachContext(VoName,{[a=1]})"
LONG = "+".join(['regexp("(a+)+$", "{}b")'.format("a" * 40)] * 50)
"""It takes seconds: a backtracking match of a tenth of a second, fifty times."""

FAILING = ["random(0)", "+".join(["1"] * 2_000), "(" * 300 + "1" + ")" * 300]


def hostile(**attributes: str) -> str:
    """A job of a history file with attributes as their owner wrote them."""
    known = job_ad("s1", 9, GlobalJobId="s1#9.0#5", VoName=None)
    lines = "".join(f"{name} = {text}\n" for name, text in attributes.items())
    return history_text(known).replace("***", f"{lines}***")


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Player:
    program = tmp_path / "bin" / "condor_history"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {PLAYER} {tmp_path} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return Player(tmp_path)


def config(**options: Any) -> HTCondorConfig:
    return HTCondorConfig.model_validate({"earliest_datetime": NOW - timedelta(days=1), **options})


async def collect(chosen: HTCondorConfig, at: RealContext) -> tuple[Sequence[Record], Sequence[Quarantined]]:
    before = len(at.kept)
    records = await at.keep(HTCONDOR.collect(chosen, at))
    return records, [one for batch in at.kept[before:] for one in batch.quarantined]


def collected_by_the_command(folder: Path, collector: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    document = {"state_dir": str(folder / "state"), "collectors": {"pool": {"kind": "htcondor", **collector}}}
    (folder / "auditord.yml").write_text(json.dumps(document))
    command = [
        sys.executable,
        "-m",
        "auditord",
        "collect",
        "pool",
        "--dry-run",
        "--config",
        str(folder / "auditord.yml"),
    ]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def test_an_ad_that_ends_the_library_does_not_end_the_daemons_process(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text(in_history(*recorded_ads("long_completed"), *recorded_ads(POISON), *recorded_ads("long_gpu")))
    done = collected_by_the_command(
        tmp_path, {"history_paths": [str(path)], "earliest_datetime": "2026-11-01T00:00:00Z"}
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.count("record_id") == 2
    assert "would be quarantined: ap1@example.org#10.0#1795332909" in done.stderr
    assert "2 records; 1 quarantined" in done.stderr


MODES = ["json", "jsonl", "history_paths", "per_job_history_dir"]
HARMFUL = [
    ("separated", SEGFAULT),  # condor_history prints "error" for the others
    *((mode, expression) for mode in MODES for expression in (SEGFAULT, *FAILING[:2])),
    *((mode, FAILING[2]) for mode in MODES[2:]),  # the stand-in cannot read what is nested so deeply
]


@pytest.mark.anyio
@pytest.mark.parametrize(("mode", "expression"), HARMFUL, ids=lambda each: str(each)[:12])
async def test_only_the_hostile_job_is_quarantined_and_whole(pool: Player, mode: str, expression: str) -> None:
    first = history_text(job_ad("s1", 1, end=EPOCH - 90))
    last = history_text(job_ad("s1", 2, end=EPOCH - 80))
    chosen = source(pool, mode, [first, hostile(VoName=expression), last])
    at = RealContext(moment=NOW)
    records, [broken] = await collect(chosen, at)
    assert [one.record_id for one in records] == [
        f"htcondor-s1#{n}.0#{EPOCH - 90 + 10 * (n - 1) - 7200}" for n in (1, 2)
    ]
    assert broken.source_id == "s1#9.0#5"
    assert list(broken.raw) == ["ad"]
    assert "CpusProvisioned" in broken.raw["ad"]
    assert await collect(chosen, at) == ([], [])


def source(pool: Player, mode: str, texts: Sequence[str]) -> HTCondorConfig:
    """A configuration that reads the ads in one of the modes."""
    if mode == "per_job_history_dir":
        (pool.folder / "jobs").mkdir()
        for number, text in enumerate(texts):
            (pool.folder / "jobs" / f"history.{number}").write_text(text.partition("***")[0])
        return config(per_job_history_dir=pool.folder / "jobs")
    for text in texts:
        pool.append("local", text)
    if mode == "history_paths":
        return config(history_paths=[pool.folder / "local.history"])
    return config(output=mode)


@pytest.mark.slow
@pytest.mark.anyio
async def test_an_ad_that_takes_condor_history_all_its_time_costs_its_job_alone(pool: Player) -> None:
    source(pool, "separated", [history_text(job_ad("s1", 1, end=EPOCH - 90)), hostile(HangsThePlayer="1+1")])
    rule = {"name": "slow", "key": "HangsThePlayer", "key_type": "String"}
    options = {"output": "separated", "query_timeout": "10s", "meta": [rule]}
    records, [broken] = await collect(config(**options), RealContext(moment=NOW))
    assert (len(records), broken.source_id, list(broken.raw)) == (1, "s1#9.0#5", ["ad"])
    assert "killed after 10 s" in broken.reason


@pytest.mark.anyio
async def test_an_ad_that_takes_too_much_time_to_evaluate_costs_its_job_alone(
    pool: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditord_builtin.htcondor.evaluation.CPU_SECONDS", 0.05)
    chosen = source(pool, "history_paths", [history_text(job_ad("s1", 1, end=EPOCH - 90)), hostile(VoName=LONG)])
    records, [broken] = await collect(chosen, RealContext(moment=NOW))
    assert (len(records), broken.source_id) == (1, "s1#9.0#5")
    assert "more than 0.05 s of CPU time" in broken.reason


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["json", "jsonl"])
@pytest.mark.parametrize("text", ["/Expr(1+)/", "/Expr(1+1)/"])
async def test_a_text_that_looks_like_an_expression_is_a_text(pool: Player, mode: str, text: str) -> None:
    chosen = source(pool, mode, [hostile(VoName=f'"{text}"')])
    [record], _ = await collect(chosen, RealContext(moment=NOW))
    assert (record.meta or {})["group_id"] == (text,)


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["history_paths", "per_job_history_dir"])
async def test_an_attribute_nested_too_deeply_costs_nothing_where_nobody_needs_it(pool: Player, mode: str) -> None:
    chosen = source(pool, mode, [hostile(Fdeep=FAILING[2], VoName='"atlas"')])
    [record], quarantined = await collect(chosen, RealContext(moment=NOW))
    assert (record.meta or {})["group_id"] == ("atlas",)
    assert record.components[0].amount == 4
    assert not quarantined


@pytest.mark.slow
@pytest.mark.anyio
async def test_many_hostile_jobs_among_many_with_expressions(pool: Player) -> None:
    kinds = ['"atlas"', 'strcat("at","las")', SEGFAULT]
    for number in range(1, 31):
        text = history_text(job_ad("s1", number, end=EPOCH - 90, VoName=None))
        pool.append("local", text.replace("***", f"VoName = {kinds[number % 3]}\n***"))
    records, quarantined = await collect(config(), RealContext(moment=NOW))
    assert [one.record_id.split("#")[1] for one in records] == [f"{n}.0" for n in range(1, 31) if n % 3 != 2]
    assert {one.source_id.split("#")[1] for one in quarantined} == {f"{n}.0" for n in range(1, 31) if n % 3 == 2}
    assert {(one.meta or {})["group_id"] for one in records} == {("atlas",)}


@pytest.mark.anyio
async def test_a_program_that_dies_of_something_else_is_a_failure(pool: Player) -> None:
    program = pool.folder / "bin" / "condor_history"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    with pytest.raises(CommandFailed, match="SIGSEGV"):
        await collect(config(), RealContext(moment=NOW))


def test_a_quarantined_ad_that_ends_the_library_can_be_retried() -> None:
    assert HTCONDOR.convert is not None
    [text] = recorded_ads(POISON)
    with pytest.raises(Exception, match="SIGSEGV"):
        HTCONDOR.convert(config(), {"ad": text})
    without = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("VoName"))
    assert HTCONDOR.convert(config(), {"ad": without}) is not None
