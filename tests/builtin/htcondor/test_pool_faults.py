"""The odd jobs of a real pool: lost nodes and schedds, copies in the history, lost rotations, expressions in JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

pytest.importorskip("classad2", reason="pip install 'auditord[htcondor]'")

from auditord.testing import FakeCollectorContext
from auditord_builtin.htcondor.collecting import HTCONDOR
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_hookspecs import CommandFailed, JobChoice, Record
from tests.builtin.htcondor.history_player import EPOCH, Player, history_text, job_ad
from tests.builtin.htcondor.recordings import THRICE, in_history, recorded_ads

pytestmark = pytest.mark.anyio

NOW = datetime.fromtimestamp(EPOCH, UTC)
MODES = ["separated", "json", "jsonl", "history_paths", "per_job_history_dir"]
THEN = datetime(2026, 11, 1, tzinfo=UTC)
LATER = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture
def pool(tmp_path: Path) -> Player:
    return Player(tmp_path)


def context(pool: Player, **options: Any) -> FakeCollectorContext:
    def play(argv: Sequence[str]) -> bytes:
        output, complaint, code = pool.run(argv[1:])
        if code:
            raise CommandFailed(f"exit code {code}: {complaint}", exit_code=code)
        return output.encode()

    return FakeCollectorContext(moment=LATER, commands=play, **options)


def config(pool: Player, mode: str = "separated", **options: Any) -> HTCondorConfig:
    """The local history in one of the ways of reading it."""
    chosen: dict[str, Any] = {"earliest_datetime": THEN, **options}
    if mode == "history_paths":
        chosen["history_paths"] = [pool.folder / "local.history"]
    elif mode == "per_job_history_dir":
        chosen["per_job_history_dir"] = pool.folder / "jobs"
    else:
        chosen["output"] = mode
    return HTCondorConfig.model_validate(chosen)


def put(pool: Player, *ads: str) -> None:
    """Append ads to the history, and leave a file for each."""
    folder = pool.folder / "jobs"
    folder.mkdir(exist_ok=True)
    begun = len(list(folder.iterdir()))
    for number, ad in enumerate(ads, start=begun):
        (folder / f"history.{number:03}").write_text(ad)
    pool.append("local", in_history(*ads))


async def collect(chosen: HTCondorConfig, at: FakeCollectorContext) -> list[Record]:
    return await at.keep(HTCONDOR.collect(chosen, at))


@pytest.mark.parametrize("mode", MODES)
async def test_what_expressions_refer_to_is_fetched(pool: Player, mode: str) -> None:
    """RequestMemory as submit tools write it, through two more attributes; the truth is 0 MiB and 1 KiB."""
    expressions = (
        "RequestMemory = ifthenelse(MemoryUsage isnt undefined,MemoryUsage,128)\n"
        "MemoryUsage = ((ResidentSetSize + 1023) / 1024)\nResidentSetSize = 0\nRequestDisk = DiskUsage\nDiskUsage = 1\n"
    )
    put(pool, job_ad("s1", 1, end=1_795_331_700).printOld().strip() + f"\n{expressions}")
    rules = [{"name": "Memory", "key": "RequestMemory"}, {"name": "Disk", "key": "RequestDisk"}]
    [record] = await collect(config(pool, mode, components=rules), context(pool))
    assert {one.name: one.amount for one in record.components} == {"Memory": 0, "Disk": 1}


async def test_a_chain_of_references_that_never_ends_is_fetched_at_last(pool: Player) -> None:
    chain = "".join(f"A{number} = A{number + 1}\n" for number in range(9))
    put(pool, job_ad("s1", 1, end=1_795_331_700).printOld().strip() + f"\n{chain}A9 = 42\n")
    at = context(pool)
    [record] = await collect(config(pool, "json", components=[{"name": "X", "key": "A0"}]), at)
    assert record.components[0].amount == 42
    assert sum("-attributes" not in call for call in at.ran) >= 1


@pytest.mark.parametrize("mode", MODES)
async def test_a_job_whose_node_was_lost_has_run_although_its_starts_are_none(pool: Player, mode: str) -> None:
    put(pool, *recorded_ads("long_forcex_disconnected_numjobstarts0"), *recorded_ads("long_removed_idle"))
    at = context(pool)
    [record] = await collect(config(pool, mode), at)
    assert record.record_id == "htcondor-ap1@example.org#23.0#1795331795"
    assert record.runtime == 1795332158 - 1795331796
    assert [batch.skipped for batch in at.kept if batch.skipped] == [{"never started": 1}]


@pytest.mark.parametrize(("wall_clock", "starts"), [(14.0, 1), (0.0, 0)])
async def test_a_wall_clock_time_shows_that_a_job_ran(pool: Player, wall_clock: float, starts: int) -> None:
    pool.add("local", 1, end=1_795_331_700, NumJobStarts=0, RemoteWallClockTime=wall_clock)
    assert len(await collect(config(pool), context(pool))) == starts


async def test_a_hold_counts_unless_the_remote_wall_clock_time_is_asked_for(pool: Player) -> None:
    """Ran for 14 s, was held, and removed 45 s later."""
    begin = 1_795_331_000
    times = {"LastMatchTime": begin, "JobCurrentStartDate": begin, "JobStartDate": begin, "JobStatus": 3}
    pool.add("local", 1, end=begin + 59, CompletionDate=None, RemoteWallClockTime=14.0, **times)
    [default] = await collect(config(pool), context(pool))
    [other] = await collect(config(pool, runtime="remote_wall_clock_time"), context(pool))
    assert (default.runtime, other.runtime) == (59, 14)
    assert default.start_time == other.start_time


@pytest.mark.parametrize(
    ("name", "start", "runtime"),
    [("long_twice", 1795331795, 42), ("long_removed_running", 1795331740, 8)],
)
async def test_the_remote_wall_clock_time_of_recorded_jobs(pool: Player, name: str, start: int, runtime: int) -> None:
    put(pool, *recorded_ads(name))
    [record] = await collect(config(pool, runtime="remote_wall_clock_time"), context(pool))
    assert (int(record.start_time.timestamp()), record.runtime) == (start, runtime)


async def test_where_the_wall_clock_time_is_unknown_start_and_stop_count(pool: Player) -> None:
    put(pool, *recorded_ads("long_forcex_disconnected_numjobstarts0"))
    [record] = await collect(config(pool, runtime="remote_wall_clock_time"), context(pool))
    assert record.runtime == 362


async def test_the_wall_clock_time_of_all_runs_is_none_of_each(pool: Player) -> None:
    with pytest.raises(ValidationError, match="keep one"):
        config(pool, runtime="remote_wall_clock_time", epochs=True)


async def test_rotations_that_were_lost_are_noticed(pool: Player, caplog: pytest.LogCaptureFixture) -> None:
    path, chosen, at = pool.folder / "local.history", config(pool, "history_paths"), context(pool)
    path.write_text(text(*range(1, 21)))
    assert len(await collect(chosen, at)) == 20
    path.rename(path.with_suffix(".history.1"))
    path.write_text(text(*range(21, 31)))
    assert len(await collect(chosen, at)) == 10
    assert "jobs may be missing" not in caplog.text
    path.with_suffix(".history.1").unlink()
    path.write_text(text(*range(60, 81)))  # what was read last was rotated twice and removed
    assert len(await collect(chosen, at)) == 21
    assert [record.levelname for record in caplog.records if "jobs may be missing" in record.message] == ["WARNING"]
    caplog.clear()
    assert await collect(chosen, at) == []
    assert "jobs may be missing" not in caplog.text


def text(*clusters: int) -> str:
    return "".join(history_text(job_ad("s1", cluster, end=1_795_331_700 + cluster)) for cluster in clusters)


async def test_a_file_that_is_between_two_rotations_is_no_loss(pool: Player, caplog: pytest.LogCaptureFixture) -> None:
    path, chosen, at = pool.folder / "local.history", config(pool, "history_paths"), context(pool)
    path.write_text(text(1, 2))
    await collect(chosen, at)
    path.rename(path.with_suffix(".history.1"))
    assert await collect(chosen, at) == []
    path.write_text(text(3))
    assert len(await collect(chosen, at)) == 1
    assert "jobs may be missing" not in caplog.text
    path.with_suffix(".history.1").unlink()
    path.write_text(text(9))
    await collect(chosen, at)
    assert "jobs may be missing" in caplog.text


@pytest.mark.parametrize("mode", MODES)
async def test_of_several_ads_of_a_job_the_most_complete_counts_and_the_others_are_differences(
    pool: Player, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, middle, new = reversed(recorded_ads(THRICE))
    less = "".join(line for line in old.splitlines(keepends=True) if not line.startswith(("CpusProv", "MemoryProv")))
    put(pool, less, middle, new)
    at = context(pool)
    records = await collect(config(pool, mode), at)
    assert [int(record.stop_time.timestamp()) for record in records if record.stop_time] == [1795332634, 1795332644]
    assert [batch.skipped for batch in at.kept if batch.skipped] == [
        {"is in the history again, with fewer attributes": 1}
    ]
    assert not any(batch.quarantined for batch in at.kept)
    assert "1 job is in the history several times, such as ap1@example.org#3.21" in caplog.text
    assert await collect(config(pool, mode), at) == []


@pytest.mark.parametrize("mode", MODES)
async def test_of_equal_ads_the_first_counts(pool: Player, mode: str) -> None:
    put(pool, *reversed(recorded_ads(THRICE)))
    records = await collect(config(pool, mode), context(pool))
    assert [one.runtime for one in records] == [0, 11, 21]


@pytest.mark.parametrize("mode", MODES)
async def test_a_copy_that_comes_later_is_a_difference_and_hides_nothing(pool: Player, mode: str) -> None:
    """The schedd crashes after its run was read; the jobs that end before the copy is written must not be lost."""
    old, _, new = reversed(recorded_ads(THRICE))
    at, chosen = context(pool), config(pool, mode)
    put(pool, *(plain(cluster) for cluster in (1, 2)), old)
    assert len(await collect(chosen, at)) == 3
    put(pool, plain(5), plain(6), new, plain(7))
    ids = [record.record_id.split("#")[1] for record in await collect(chosen, at)]
    assert sorted(ids) == ["3.21", "5.0", "6.0", "7.0"]
    assert await collect(chosen, at) == []


def plain(cluster: int) -> str:
    return f"{job_ad('s1', cluster, end=1_795_331_700 + cluster).printOld().strip()}\n"


async def test_a_copy_of_the_ad_at_which_reading_stops_stops_nothing(pool: Player) -> None:
    at, chosen = context(pool), config(pool)
    old, _, new = reversed(recorded_ads(THRICE))
    put(pool, old, plain(1))
    assert len(await collect(chosen, at)) == 2
    put(pool, plain(2), new)
    assert len(await collect(chosen, at)) == 2
    assert await collect(chosen, at) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("copied", [(1,), (2,), (3,), (1, 2), (3, 2)])
async def test_the_same_ad_again_hides_no_jobs_that_ended_before_it(
    pool: Player, mode: str, copied: Sequence[int]
) -> None:
    """A removed job, or one that was left in the queue, keeps its status, and so the name of its ad."""
    at, chosen = context(pool), config(pool, mode)
    put(pool, plain(1), plain(2), plain(3))
    assert len(await collect(chosen, at)) == 3
    put(pool, plain(5), plain(6), *map(plain, copied), plain(7))
    ids = [record.record_id.split("#")[1] for record in await collect(chosen, at)]
    assert sorted(ids) == ["5.0", "6.0", "7.0"]
    put(pool, plain(8))
    assert [record.record_id.split("#")[1] for record in await collect(chosen, at)] == ["8.0"]


@pytest.mark.parametrize("mode", MODES)
async def test_collected_again_a_job_is_its_most_complete_ad_alone(pool: Player, mode: str) -> None:
    put(pool, *reversed(recorded_ads(THRICE)))
    [record] = await collect(config(pool, mode), context(pool, job=JobChoice("3.21")))
    assert record.runtime == 0


@pytest.mark.parametrize("mode", ["separated", "json", "jsonl"])
async def test_a_history_that_does_not_exist_yet_is_no_error(
    pool: Player, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    chosen, at = config(pool, mode, history_file=str(pool.folder / "local.history")), context(pool)
    assert await collect(chosen, at) == []
    assert "does not exist yet" in caplog.text
    name = pool.add("local", 1, end=1_795_331_700)
    assert [record.record_id for record in await collect(chosen, at)] == [f"htcondor-{name}"]
    (pool.folder / "local.history").unlink()
    with pytest.raises(CommandFailed, match="its history is empty, but was not"):
        await collect(chosen, at)
