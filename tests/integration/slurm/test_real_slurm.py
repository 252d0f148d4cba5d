"""A real Slurm's jobs against an independent reading of its accounting: other options, times and separators."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.kinds import SLURM
from auditord_hookspecs import Record, Window
from auditord_hookspecs.wire import encode_record
from tests.real_context import RealContext
from tests.slurm_accounting import META, base_id, expected_records, instant, never_started, plain, sacct
from tests.slurm_jobs import HOSTILE_COMMENT, SlurmJobs, run_slurm, submit, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.anyio]


def config(jobs: SlurmJobs, **options: Any) -> SlurmConfig:
    return SlurmConfig.model_validate({"earliest_datetime": jobs.since, "lag": "0s", "meta": META, **options})


# Other jobs may run beside; only what was submitted for the tests counts.
async def collect(jobs: SlurmJobs, context: RealContext, **options: Any) -> dict[str, Record]:
    records = await context.keep(SLURM.collect(config(jobs, **options), context))
    found = {record.record_id: record for record in records}
    assert len(found) == len(records), "no id twice"
    return {record_id: record for record_id, record in found.items() if base_id(record_id) in jobs.ids.values()}


def amounts(record: Record) -> dict[str, int]:
    return {component.name: component.amount for component in record.components}


async def test_the_records_equal_the_accounting_job_by_job(slurm_jobs: SlurmJobs) -> None:
    records = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until))
    found = {record_id: plain(json.loads(encode_record(record))) for record_id, record in records.items()}
    assert found == expected_records(slurm_jobs)


async def test_every_kind_of_job_is_there(slurm_jobs: SlurmJobs) -> None:
    records = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until))
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
    records = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until))
    steps = amounts(records[f"slurm-{slurm_jobs.ids['steps']}"])
    assert steps["MaxRSS"] > 80 << 20
    assert (steps["Cores"], steps["Memory"]) == (4, 800)


@pytest.mark.parametrize(
    ("filtered", "option", "names"),
    [
        ("account", "--accounts", ["Biology", "biology"]),
        ("partition", "--partition", ["SHORT", "short"]),
        ("user", "--user", ["bob"]),
    ],
)
async def test_names_in_filters_are_compared_as_sacct_does(
    slurm_jobs: SlurmJobs, filtered: str, option: str, names: list[str]
) -> None:
    ids, without_record = ",".join(slurm_jobs.ids.values()), never_started(slurm_jobs)
    for name in names:
        listed = run_slurm("sacct", "-anXP", "-j", ids, f"{option}={name}", "-o", "JobID").split()
        records = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until), job_filter={filtered: [name]})
        expected = {f"slurm-{job_id}" for job_id in listed if job_id not in without_record}
        # Requeued runs are not listed without duplicates.
        assert {record_id for record_id in records if record_id.count("-") == 1} == expected
        assert expected


async def test_gpus_are_counted_once(slurm_jobs: SlurmJobs) -> None:
    records = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until))
    gpus = {record_id: amounts(record)["GPU"] for record_id, record in records.items() if "GPU" in amounts(record)}
    assert gpus == {f"slurm-{slurm_jobs.ids['gpu']}": 2}


async def test_free_text_arrives_as_it_was_written(slurm_jobs: SlurmJobs) -> None:
    records = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until))
    hostile = records[f"slurm-{slurm_jobs.ids['hostile']}"].meta or {}
    labelled = records[f"slurm-{slurm_jobs.ids['completed']}"].meta or {}
    assert hostile["comment"] == (HOSTILE_COMMENT,)
    assert hostile["comment"] == (run_slurm("sacct", "-nXP", "-j", slurm_jobs.ids["hostile"], "-o", "Comment"),)
    assert (labelled["voms"], labelled["subject"]) == (("/atlas/Role=production",), ("/DC=org/CN=a|b",))


async def test_what_never_started_is_counted(slurm_jobs: SlurmJobs) -> None:
    context = RealContext(moment=slurm_jobs.until)
    # Only the tests' own jobs: others may cancel theirs at the same time.
    await collect(slurm_jobs, context, sacct=["sacct", f"--jobs={','.join(slurm_jobs.ids.values())}"])
    skipped = sum(batch.skipped.get("never started", 0) for batch in context.kept)
    assert skipped == len(never_started(slurm_jobs)) == 2
    assert not any(batch.quarantined for batch in context.kept)


async def test_a_second_run_adds_nothing_nor_does_a_look_back(slurm_jobs: SlurmJobs) -> None:
    context = RealContext(moment=slurm_jobs.until)
    assert await collect(slurm_jobs, context)
    assert not await collect(slurm_jobs, context)
    context.moment += timedelta(days=1)
    asked = len(context.ran)
    assert not await collect(slurm_jobs, context)
    assert any(not [option for option in argv if option.startswith("--state")] for argv in context.ran[asked:])


async def test_a_period_collected_again_gives_the_same_records(slurm_jobs: SlurmJobs) -> None:
    first = await collect(slurm_jobs, RealContext(moment=slurm_jobs.until))
    window = Window(slurm_jobs.since, slurm_jobs.until)
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
    assert closed.stop_time == instant(sacct(job_id, "End")[0]["End"])


async def test_all_clusters_and_a_remote_shell_read_the_same(slurm_jobs: SlurmJobs) -> None:
    moment = slurm_jobs.until
    first = await collect(slurm_jobs, RealContext(moment=moment))
    remote = await collect(slurm_jobs, RealContext(moment=moment), through=["sh", "-c"])
    every = RealContext(moment=moment)
    chosen = config(slurm_jobs, clusters="all", record_prefix="{cluster}")
    found = {record.record_id for record in await every.keep(SLURM.collect(chosen, every))}
    [cluster] = {row["Cluster"] for row in sacct(slurm_jobs.ids["completed"], "Cluster")}
    assert remote == first
    assert found >= {record_id.replace("slurm", cluster, 1) for record_id in first}
