"""A real Slurm's jobs against an independent reading of its accounting: other options, times and separators."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from auditord_builtin.slurm import SLURM, SlurmConfig
from auditord_hookspecs import Record, Window
from tests.real_context import RealContext
from tests.slurm_jobs import HOSTILE_COMMENT, SlurmJobs, run_slurm, submit, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.anyio]

META = [
    {"name": "comment", "key": "Comment", "key_type": "String"},
    {"name": "labels", "key": "Comment", "key_type": "Json"},
    {"name": "state", "key": "State", "key_type": "String"},
]


def config(jobs: SlurmJobs, **options: Any) -> SlurmConfig:
    return SlurmConfig.model_validate({"earliest_datetime": jobs.since, "lag": "0s", "meta": META, **options})


# Other jobs may run beside; only what was submitted for the tests counts.
async def collect(jobs: SlurmJobs, context: RealContext, **options: Any) -> dict[str, Record]:
    records = await context.keep(SLURM.collect(config(jobs, **options), context))
    found = {record.record_id: record for record in records}
    assert len(found) == len(records), "no id twice"
    return {record_id: record for record_id, record in found.items() if _base(record_id) in jobs.ids.values()}


def _base(record_id: str) -> str:
    return re.split(r"[_+\[-]", record_id.removeprefix("slurm-"))[0]


def sacct(job_id: str, *columns: str, steps: bool = False) -> list[dict[str, str]]:
    """What sacct says of a job with its usual separator; only columns without free text."""
    options = [] if steps else ["-X"]
    lines = run_slurm("sacct", "-nDP", *options, "-j", job_id, "-o", ",".join(("JobID", *columns))).splitlines()
    return [dict(zip(("JobID", *columns), line.split("|"), strict=True)) for line in lines]


def parsed(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def in_bytes(text: str) -> int:
    return int(text.removesuffix("K")) * 1_024 if text.endswith("K") else int(text or 0)


def amounts(record: Record) -> dict[str, int]:
    return {component.name: component.amount for component in record.components}


def expected_records(jobs: SlurmJobs) -> Mapping[str, Mapping[str, str]]:
    """Every run that started, by the id that it must have."""
    runs = [
        run for job_id in jobs.ids.values() for run in sacct(job_id, "State", "Start", "End", "NCPUS", "User", "Group")
    ]
    return {_expected_id(run): run for run in runs if run["Start"] not in {"None", "Unknown"}}


def _expected_id(run: Mapping[str, str]) -> str:
    requeued = run["State"] == "REQUEUED"
    return f"slurm-{run['JobID']}" + (f"-{parsed(run['Start']).timestamp():.0f}" if requeued else "")


async def test_the_records_equal_the_accounting_job_by_job(slurm_jobs: SlurmJobs) -> None:
    expected = expected_records(slurm_jobs)
    records = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until + timedelta(seconds=1)))
    assert records.keys() == expected.keys()
    for record_id, run in expected.items():
        record = records[record_id]
        assert (record.start_time, record.stop_time) == (parsed(run["Start"]), parsed(run["End"]))
        assert amounts(record)["Cores"] == int(run["NCPUS"])
        assert record.meta is not None
        assert (record.meta["user_id"], record.meta["group_id"]) == ((run["User"],), (run["Group"],))
        assert record.meta["state"] == (run["State"],)


async def test_every_kind_of_job_is_there(slurm_jobs: SlurmJobs) -> None:
    records = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until + timedelta(seconds=1)))
    states = {record_id: (record.meta or {})["state"][0].split(" ")[0] for record_id, record in records.items()}
    ids = slurm_jobs.ids
    plain = {kind: states.get(f"slurm-{job_id}") for kind, job_id in ids.items()}
    assert plain == {
        "requeued": "COMPLETED",
        "timed_out": "TIMEOUT",
        "cancelled_running": "CANCELLED",
        "cancelled_pending": None,
        "cancelled_array": None,
        "completed": "COMPLETED",
        "failed": "FAILED",
        "killed": "FAILED",
        "array": None,
        "steps": "COMPLETED",
        "gpu": "COMPLETED",
        "het": None,
        "hostile": "COMPLETED",
        "instant": "COMPLETED",
        "interactive": "COMPLETED",
    }
    tasks = [states[f"slurm-{ids['array']}_{task}"] for task in range(1, 5)]
    assert tasks == ["COMPLETED", "COMPLETED", "FAILED", "COMPLETED"]
    assert [states[f"slurm-{ids['het']}+{part}"] for part in (0, 1)] == ["COMPLETED"] * 2
    assert "REQUEUED" in states.values()


async def test_memory_is_the_peak_over_all_steps(slurm_jobs: SlurmJobs) -> None:
    records = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until + timedelta(seconds=1)))
    for kind in ("steps", "interactive", "timed_out", "completed", "gpu"):
        job_id = slurm_jobs.ids[kind]
        peak = max(in_bytes(row["MaxRSS"]) for row in sacct(job_id, "MaxRSS", steps=True))
        assert amounts(records[f"slurm-{job_id}"]).get("MaxRSS", 0) == peak, kind
    steps = amounts(records[f"slurm-{slurm_jobs.ids['steps']}"])
    assert steps["MaxRSS"] > 80 << 20
    assert (steps["Cores"], steps["Memory"]) == (4, 800)


async def test_gpus_are_counted_once(slurm_jobs: SlurmJobs) -> None:
    records = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until + timedelta(seconds=1)))
    gpus = {record_id: amounts(record)["GPU"] for record_id, record in records.items() if "GPU" in amounts(record)}
    assert gpus == {f"slurm-{slurm_jobs.ids['gpu']}": 2}


async def test_free_text_arrives_as_it_was_written(slurm_jobs: SlurmJobs) -> None:
    records = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until + timedelta(seconds=1)))
    hostile = records[f"slurm-{slurm_jobs.ids['hostile']}"].meta or {}
    labelled = records[f"slurm-{slurm_jobs.ids['completed']}"].meta or {}
    assert hostile["comment"] == (HOSTILE_COMMENT,)
    assert hostile["comment"] == (run_slurm("sacct", "-nXP", "-j", slurm_jobs.ids["hostile"], "-o", "Comment"),)
    assert (labelled["voms"], labelled["subject"]) == (("/atlas/Role=production",), ("/DC=org/CN=a|b",))


async def test_what_never_started_is_counted(slurm_jobs: SlurmJobs) -> None:
    context = RealContext(moment=slurm_jobs.until + timedelta(seconds=1))
    await collect(slurm_jobs, context)
    skipped = sum(batch.skipped.get("never started", 0) for batch in context.kept)
    since, until = (moment.strftime("%FT%T") for moment in (slurm_jobs.since, slurm_jobs.until))
    listed = run_slurm("sacct", "-anXDP", "-S", since, "-E", until, "-s", "CA,F,NF,DL,BF,TO", "-o", "JobID,Start")
    never = [line for line in listed.splitlines() if line.endswith(("|None", "|Unknown"))]
    assert skipped == len(never) >= 2
    assert not any(batch.quarantined for batch in context.kept)


async def test_a_second_run_adds_nothing_nor_does_a_look_back(slurm_jobs: SlurmJobs) -> None:
    context = RealContext(moment=slurm_jobs.until + timedelta(seconds=1))
    assert await collect(slurm_jobs, context)
    assert not await collect(slurm_jobs, context)
    context.moment += timedelta(days=1)
    asked = len(context.ran)
    assert not await collect(slurm_jobs, context)
    assert any(not [option for option in argv if option.startswith("--state")] for argv in context.ran[asked:])


async def test_a_period_collected_again_gives_the_same_records(slurm_jobs: SlurmJobs) -> None:
    first = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until + timedelta(seconds=1)))
    window = Window(slurm_jobs.since, slurm_jobs.until + timedelta(seconds=1))
    assert await collect(slurm_jobs, RealContext(moment=slurm_jobs.until, window=window)) == first
    small = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until, window=window), slice="1m")
    assert small == first


async def test_a_running_job_has_an_open_record_that_its_end_closes(slurm_jobs: SlurmJobs) -> None:
    job_id = submit("alice", "-A", "physics", "-J", "open", "--wrap", "sleep 600")
    wait_until(lambda: [row["State"] for row in sacct(job_id, "State")] == ["RUNNING"], f"job {job_id} to run")
    jobs = SlurmJobs({"open": job_id}, slurm_jobs.until, slurm_jobs.until)
    context = RealContext(moment=datetime.now(UTC))
    [opened] = (await collect(jobs, context, open_records=True)).values()
    assert not await collect(jobs, context, open_records=True)
    run_slurm("scancel", job_id)
    wait_until(lambda: sacct(job_id, "End")[0]["End"] != "Unknown", f"job {job_id} to end")
    context.moment = datetime.now(UTC) + timedelta(seconds=1)
    [closed] = (await collect(jobs, context, open_records=True)).values()
    assert (opened.record_id, opened.start_time, opened.stop_time) == (closed.record_id, closed.start_time, None)
    assert closed.stop_time == parsed(sacct(job_id, "End")[0]["End"])


async def test_all_clusters_and_a_remote_shell_read_the_same(slurm_jobs: SlurmJobs) -> None:
    moment = slurm_jobs.until + timedelta(seconds=1)
    first = await collect(slurm_jobs, RealContext(moment=moment))
    remote = await collect(slurm_jobs, RealContext(moment=moment), through=["sh", "-c"])
    every = RealContext(moment=moment)
    chosen = config(slurm_jobs, clusters="all", record_prefix="{cluster}")
    found = {record.record_id for record in await every.keep(SLURM.collect(chosen, every))}
    [cluster] = {row["Cluster"] for row in sacct(slurm_jobs.ids["completed"], "Cluster")}
    assert remote == first
    assert found >= {record_id.replace("slurm", cluster, 1) for record_id in first}
