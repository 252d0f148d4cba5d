"""Usage from records and from sacct is the same, to the core-second, for jobs of a real Slurm."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from auditord.testing import FakePluginContext
from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.kinds import SLURM
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.usage import RawUsage, exact_query, raw_usage, sacct_usage
from auditord_hookspecs import Record, Window
from tests.real_context import RealContext
from tests.slurm_accounting import base_id, sacct
from tests.slurm_jobs import SlurmJobs, run_slurm, submit, wait_until
from tests.waldur_settings import waldur_config

pytestmark = [pytest.mark.slurm, pytest.mark.anyio]

ACCOUNT: Final = {"name": "account", "key": "Account", "key_type": "String"}
AMOUNTS: Final = (
    {"name": "Cores", "key": "NCPUS"},
    {"name": "Memory", "key": "AllocTRES", "sub_key": "mem", "key_type": "IntegerMega", "optional": True},
    {"name": "GPU", "key": "AllocTRES", "sub_key": "gres/gpu", "optional": True},
    {"name": "GPU_a100", "key": "AllocTRES", "sub_key": "gres/gpu:a100", "optional": True},
)
RESOURCES: Final[dict[str, dict[str, int]]] = {"cpu": {}, "mem": {}, "gres/gpu": {}, "gres/gpu:a100": {}}
LONG: Final = 5
"""Seconds; the jobs that are requeued, and those that reach their time limit, run longer."""

SECOND: Final = timedelta(seconds=1)


def settings_for(folder: Path, jobs: SlurmJobs) -> WaldurConfig:
    """The real sacct, which is asked for the tests' own jobs alone: others use the same Slurm."""
    program = folder / "sacct"
    program.write_text(f'#!/bin/sh\nexec /usr/bin/sacct --jobs={",".join(jobs.ids.values())} "$@"\n')
    program.chmod(0o755)
    return waldur_config(
        backend_components=RESOURCES,
        recorded_as={"gres/gpu:a100": {"component": ["GPU_a100"]}},
        slurm={"slurm_bin_path": str(folder)},
    )


async def collected(jobs: SlurmJobs, moment: datetime, **options: Any) -> list[Record]:  # Any: as in a file
    config = SlurmConfig.model_validate(
        {"earliest_datetime": jobs.since, "lag": "0s", "meta": [ACCOUNT], "components": AMOUNTS, **options}
    )
    context = RealContext(moment=moment)
    records = await context.keep(SLURM.collect(config, context))
    return [record for record in records if base_id(record.record_id) in jobs.ids.values()]


Amounts: TypeAlias = dict[tuple[str | None, str | None, str], Fraction]


def amounts(usage: RawUsage) -> Amounts:
    """Resource-seconds of whoever has any."""
    return {
        (account, user, resource): minutes * 60
        for account, users in usage.items()
        for user, resources in users.items()
        for resource, minutes in resources.items()
        if minutes
    }


async def both(config: WaldurConfig, records: list[Record], window: Window, as_of: datetime) -> tuple[Amounts, Amounts]:
    """From the records, and from sacct."""
    stored = await raw_usage(config, FakePluginContext(stored=records), window, as_of=as_of)
    accounted = await sacct_usage(config, RealContext(), exact_query(config, window, as_of=as_of))
    return amounts(stored), amounts(accounted)


def periods(records: list[Record], start: datetime, stop: datetime) -> list[Window]:
    """Billing periods that end in the middle of each long job."""
    middles = {each.start_time + (each.runtime or 0) // 2 * SECOND for each in records if (each.runtime or 0) >= LONG}
    return [Window(*each) for each in pairwise([start, *sorted(middles), stop])]


async def test_jobs_inside_and_across_the_ends_of_periods(slurm_jobs: SlurmJobs, tmp_path: Path) -> None:
    config, as_of = settings_for(tmp_path, slurm_jobs), slurm_jobs.until
    records = await collected(slurm_jobs, as_of)
    windows = periods(records, slurm_jobs.since, as_of)
    sums: Counter[tuple[str | None, str | None, str]] = Counter()
    for window in windows:
        stored, accounted = await both(config, records, window, as_of)
        assert stored == accounted
        sums.update(stored)
    whole, accounted = await both(config, records, Window(slurm_jobs.since, as_of), as_of)
    assert whole == accounted == sums, "and periods tile"
    assert {("physics", "alice", "gres/gpu"), ("physics", "alice", "gres/gpu:a100"), ("biology", "bob", "cpu")} < set(
        whole
    )
    spans = [(record.start_time, record.stop_time or as_of) for record in records]
    assert any(start < window.stop < stop for start, stop in spans for window in windows), "some job was split"
    assert any(window.start < start < stop < window.stop for start, stop in spans for window in windows)


async def test_a_job_that_runs_at_the_end_of_a_period_and_now(slurm_jobs: SlurmJobs, tmp_path: Path) -> None:
    job_id = submit("alice", "-A", "physics", "-c", "2", "--mem=300", "--wrap", "sleep 600")
    jobs = SlurmJobs({"running": job_id}, slurm_jobs.until, slurm_jobs.until)
    try:
        wait_until(lambda: _has_run_for(job_id, 3), f"job {job_id} to run for some seconds")
        config, as_of = settings_for(tmp_path, jobs), datetime.now(UTC).replace(microsecond=0) - SECOND
        [record] = records = await collected(jobs, as_of, open_records=True)
        assert record.stop_time is None
        middle = record.start_time + SECOND
        over, going_on = Window(jobs.since, middle), Window(middle, as_of + timedelta(hours=1))
        stored, accounted = await both(config, records, over, as_of)
        assert stored == accounted == {("physics", "alice", "cpu"): 2, ("physics", "alice", "mem"): 300}
        stored, accounted = await both(config, records, going_on, as_of)
        assert stored == accounted
        assert stored["physics", "alice", "cpu"] == 2 * ((as_of - middle) // SECOND)
    finally:
        run_slurm("scancel", job_id)


def _has_run_for(job_id: str, seconds: int) -> bool:
    rows = sacct(job_id, "State", "ElapsedRaw")
    return [row["State"] for row in rows] == ["RUNNING"] and int(rows[0]["ElapsedRaw"]) >= seconds
