"""The odd jobs of a real pool: lost nodes and schedds, copies in the history, lost rotations, expressions in JSON."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

pytest.importorskip("classad2", reason="pip install 'auditord[htcondor]'")

from auditord.testing import FakeCollectorContext
from auditord_builtin.htcondor.collecting import HTCONDOR
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_hookspecs import AuditordError, CommandFailed, JobChoice, Record, Window
from tests.builtin.htcondor.history_player import EPOCH, Player, history_text, job_ad
from tests.builtin.htcondor.recordings import THRICE, in_history, recorded_ads

pytestmark = pytest.mark.anyio

NOW = datetime.fromtimestamp(EPOCH, UTC)
MODES = ["separated", "json", "jsonl", "history_paths", "per_job_history_dir"]
THEN = datetime(2026, 11, 1, tzinfo=UTC)
LATER = datetime(2026, 12, 1, tzinfo=UTC)
LATER_JOB = 1_795_331_700
_CPUS = ("CpusProvisioned", "RequestCpus")


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


BEGIN = 1_795_331_000
DAY = 86_400


def removed(after: int, **attributes: Any) -> dict[str, Any]:
    """The attributes of a job that began at BEGIN, and was removed some seconds later, when it had no slot any more."""
    times = dict.fromkeys(("LastMatchTime", "JobCurrentStartDate", "JobStartDate"), BEGIN)
    return {**times, "JobStatus": 3, "CompletionDate": None, "end": BEGIN + after, **attributes}


def evicted(**attributes: Any) -> dict[str, Any]:
    """The attributes of a job that was evicted after ten hours, waited for an hour, and then ran for ten hours."""
    times = {"JobStartDate": BEGIN, "LastMatchTime": BEGIN + 39_600, "JobCurrentStartDate": BEGIN + 39_600}
    walls = {"RemoteWallClockTime": 72_000.0, "LastRemoteWallClockTime": 36_000.0}
    cpu = {"RemoteUserCpu": 35_990.0, "RemoteSysCpu": 10.0}
    all_cpu = {"CumulativeRemoteUserCpu": 71_980.0, "CumulativeRemoteSysCpu": 20.0}
    return {"end": BEGIN + 75_600, **times, **walls, **cpu, **all_cpu, **attributes}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("job", "runtimes"),
    [
        (removed(DAY + 14, RemoteWallClockTime=14.0, LastRemoteWallClockTime=14.0), (14, 14, DAY + 14)),
        (removed(10 * DAY, RemoteWallClockTime=3600.0, LastRemoteWallClockTime=3600.0), (3_600, 3_600, 10 * DAY)),
        # The schedd was lost while the job ran, and reconnected.
        (removed(600, RemoteWallClockTime=0.0, LastRemoteWallClockTime=0.0, LastVacateTime=BEGIN + 40), (40, 40, 600)),
        (removed(600, RemoteWallClockTime=5.0, LastRemoteWallClockTime=5.0, LastVacateTime=BEGIN + 40), (40, 40, 600)),
        # The eviction was that of an earlier run.
        (removed(600, RemoteWallClockTime=30.0, LastRemoteWallClockTime=20.0, LastVacateTime=BEGIN - 1), (20, 30, 600)),
        # The node was lost, so that nothing is known.
        (removed(600, RemoteWallClockTime=0.0), (600, 600, 600)),
        (removed(600, RemoteWallClockTime=0.0, LastRemoteWallClockTime=0.0), (600, 600, 600)),
        (removed(600, RemoteWallClockTime=99.0), (600, 99, 600)),
        (removed(600, RemoteWallClockTime=900.0, LastRemoteWallClockTime=900.0), (600, 600, 600)),
        # It failed to start, and was held.
        (removed(600, RemoteWallClockTime=0.0, LastRemoteWallClockTime=0.0, LastVacateTime=BEGIN), (0, 0, 600)),
        (evicted(), (36_000, 72_000, 36_000)),
        (evicted(RemoteWallClockTime=36_100.0, LastRemoteWallClockTime=100.0), (36_000, 72_000, 36_000)),
    ],
)
async def test_time_with_a_slot_counts(
    pool: Player, mode: str, job: Mapping[str, Any], runtimes: tuple[int, int, int]
) -> None:
    put(pool, f"{job_ad('local', 1, **job).printOld().strip()}\n")
    for runtime, expected in zip(("last_run", "all_runs", "auditor"), runtimes, strict=True):
        [record] = await collect(config(pool, mode, runtime=runtime), context(pool))
        assert record.runtime == expected
        first_run = BEGIN if runtime == "all_runs" else job["LastMatchTime"]
        assert int(record.start_time.timestamp()) == first_run
        assert record.stop_time is not None
        assert int(record.stop_time.timestamp()) <= job["end"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("options", "runtime", "cpu"),
    [
        ({}, 36_000, 36_000),
        ({"components": "auditor"}, 36_000, 36_000),
        ({"runtime": "auditor"}, 36_000, 36_000),
        ({"runtime": "all_runs"}, 72_000, 72_000),
        ({"runtime": "all_runs", "components": "auditor"}, 72_000, 72_000),
    ],
)
async def test_cpu_times_are_those_of_the_runs_that_count(
    pool: Player, mode: str, options: dict[str, Any], runtime: int, cpu: int
) -> None:
    """A fully busy job is fully efficient."""
    put(pool, f"{job_ad('local', 1, **evicted()).printOld().strip()}\n")
    [record] = await collect(config(pool, mode, **options), context(pool))
    amounts = {component.name: component.amount for component in record.components}
    assert (record.runtime, amounts["TotalCPU"]) == (runtime, cpu)


async def test_auditors_components_stand_for_auditors_runtime(pool: Player) -> None:
    pool.add("local", 1, **removed(DAY, RemoteWallClockTime=14.0, LastRemoteWallClockTime=14.0))
    for options, expected in (({}, DAY), ({"runtime": "last_run"}, 14)):
        [record] = await collect(config(pool, components="auditor", **options), context(pool))
        assert record.runtime == expected


@pytest.mark.parametrize("mode", MODES)
async def test_jobs_of_a_pool_that_were_reconnected_held_and_parallel(pool: Player, mode: str) -> None:
    """Recorded with HTCondor 23.9.6, whose schedd was killed once: LastRemoteWallClockTime says 31, 12, 199 and 21."""
    put(pool, *recorded_ads("pool_23_9"))
    runtimes: dict[str, list[int | None]] = {}
    for runtime in ("last_run", "all_runs", "auditor"):
        records = await collect(config(pool, mode, runtime=runtime), context(pool))
        runtimes[runtime] = [record.runtime for record in records]
        assert [int(record.start_time.timestamp()) % 1_000 for record in records] == (
            [46, 46, 46, 51] if runtime == "all_runs" else [46, 46, 98, 85]
        )
        amounts = [{each.name: each.amount for each in record.components} for record in records]
        assert [(each["Cores"], each["Memory"], each["GPU"]) for each in amounts] == [
            *((2, 128, 0), (8, 128, 0), (8, 128, 0)),
            (6, 300, 3),
        ]
    assert runtimes == {"last_run": [60, 41, 199, 21], "all_runs": [60, 41, 220, 22], "auditor": [60, 255, 203, 21]}


async def test_the_same_job_read_again_is_the_same_run(pool: Player) -> None:
    """An ad that a crashed schedd wrote again may have another wall-clock time, but never makes a second record."""
    first = removed(600, RemoteWallClockTime=30.0, LastRemoteWallClockTime=30.0)
    pool.add("local", 1, **first)
    pool.add("local", 1, **{**first, "LastRemoteWallClockTime": 0.0, "Copy": 1, "EnteredCurrentStatus": BEGIN + 601})
    records = await collect(config(pool), context(pool))
    assert len({(record.record_id, record.start_time) for record in records}) == 1


async def test_a_window_has_the_records_that_end_in_it(pool: Player) -> None:
    """A job that was held and removed two days later counts on the day of its run, for audits as well."""
    job = removed(2 * DAY, RemoteWallClockTime=14.0, LastRemoteWallClockTime=14.0)
    pool.add("local", 1, **job)
    start = datetime.fromtimestamp(BEGIN, UTC)
    for shift, expected in ((timedelta(0), 1), (timedelta(days=2) - timedelta(hours=1), 0)):
        window = Window(start + shift, start + shift + timedelta(hours=2))
        assert len(await collect(config(pool), context(pool, window=window))) == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("attributes", "held"),
    [
        ({"MaxHosts": 3, "CpusProvisioned": None, "MemoryProvisioned": None, "JobUniverse": 11}, (6, 300, 12)),
        ({"MaxHosts": 6, "RequestCpus": 5, "CpusProvisioned": 5, "JobUniverse": 11}, (30, 600, 24)),
        ({"MaxHosts": 1, "CpusProvisioned": None, "MemoryProvisioned": None}, (2, 100, 4)),
        ({"MaxHosts": 7, "GPUsProvisioned": 1}, (4, 8_192, 1)),
    ],
)
async def test_resources_of_all_machines_count_and_requests_where_nothing_else_is_known(
    pool: Player, mode: str, attributes: dict[str, Any], held: tuple[int, int, int]
) -> None:
    job = job_ad("local", 1, **{"RequestCpus": 2, "RequestGPUs": 4, "end": LATER_JOB, **attributes}).printOld().strip()
    put(pool, f"{job}\nRequestMemory = ifThenElse(X =?= undefined, 100, X)\n")
    for options, names in (({}, ("Cores", "Memory", "GPU")), ({"components": "auditor"}, ("Cores", "Memory"))):
        [record] = await collect(config(pool, mode, **options), context(pool))
        amounts = {each.name: each.amount for each in record.components if each.name != "TotalCPU"}
        assert amounts == dict(zip(names, held, strict=False))


async def test_a_parallel_job_of_unknown_size_is_quarantined(pool: Player) -> None:
    pool.add("local", 1, JobUniverse=11, RequestCpus=2, end=LATER_JOB)
    at = context(pool)
    assert await collect(config(pool), at) == []
    [entry] = [one for batch in at.kept for one in batch.quarantined]
    assert "Cores: CpusProvisioned: the job is of the parallel universe, but has no MaxHosts" in entry.reason


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("specs", "scores"),
    [
        ("[ hepspec = 14.37; si2k = 2793 ]", {"HEPSPEC": 14.37}),
        ("[ HEPSCORE23 = 20.1 ]", {"HEPscore23": 20.1}),
        ("[ HEPSPEC = undefined; SI2K = 2793 ]", {}),
        ("[ OLD_HEPSPEC = 9.0; HEPscore23 = 2 * 7.5 ]", {"HEPscore23": 15.0}),
        ('[ Note = "HEPSPEC = 5"; HEPSPEC = 1.2E+01 ]', {"HEPSPEC": 12.0}),
        ('"HEPscore23=15.37;HEPSPEC=10.5"', {"HEPSPEC": 10.5, "HEPscore23": 15.37}),
        ("undefined", {}),
        ('"nothing"', {}),
    ],
)
async def test_benchmarks_are_read_as_an_ad(pool: Player, mode: str, specs: str, scores: dict[str, float]) -> None:
    """The user's own attributes of the same names must not stand for those of the node."""
    given = f"MachineAttrApelSpecs0 = {specs}\nHEPSPEC = 999\nHEPscore23 = 999\n"
    put(pool, f"{job_ad('local', 1, end=LATER_JOB).printOld().strip()}\n{given}")
    for options in ({}, {"components": "auditor"}):
        [record] = await collect(config(pool, mode, **options), context(pool))
        assert {score.name: score.value for score in record.components[0].scores} == scores


@pytest.mark.parametrize("mode", ["json", "jsonl", "history_paths", "per_job_history_dir"])
async def test_without_the_library_ads_with_expressions_that_do_not_matter_are_read(
    pool: Player, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = pool.folder / "without_classad2.py"
    without.write_text("""print('{"missing": "no module named classad2"}')""")
    monkeypatch.setattr("auditord_builtin.htcondor.evaluation._PROGRAM", without)
    rules = [{"name": "Cores", "key": "CpusProvisioned"}, {"name": "Memory", "key": "MemoryProvisioned"}]
    benchmark = {"name": "HEPSPEC", "key": "MachineAttrApelSpecs0.HEPSPEC"}
    plain, scored = config(pool, mode, components=rules), [{**rules[0], "scores": [benchmark]}]
    request = "RequestMemory = ifthenelse(MemoryUsage isnt undefined,MemoryUsage,128)\n"
    put(pool, f"{job_ad('local', 1, end=LATER_JOB).printOld().strip()}\n{request}")
    for chosen in (plain, config(pool, mode, components=scored)):
        assert len(await collect(chosen, context(pool))) == 1
    put(pool, f"{job_ad('local', 2, end=LATER_JOB).printOld().strip()}\nMachineAttrApelSpecs0 = [ HEPSPEC = 1.5 ]\n")
    with pytest.raises(AuditordError, match=r"need HTCondor's library: pip install 'auditord\[htcondor\]'"):
        await collect(config(pool, mode, components=scored), context(pool))


async def test_the_wall_clock_time_of_all_runs_is_none_of_each(pool: Player) -> None:
    with pytest.raises(ValidationError, match="keep one"):
        config(pool, runtime="all_runs", epochs=True)


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
    less = "".join(line for line in old.splitlines(keepends=True) if not line.startswith(_CPUS))
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
