"""The real program in a real Slurm's EpilogSlurmctld, and the real daemon that reads its notes."""

import json
import random
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.daemon_process import wait_until
from tests.acceptance.slurm.daemon import Site
from tests.slurm_accounting import META, Plain, expected_records, own, plain, sacct
from tests.slurm_jobs import SlurmJobs, run_slurm
from tests.slurm_notes import TASKS, NotedJobs, notes_of

pytestmark = pytest.mark.slurm

KNOWN_TO_SCONTROL = [
    {"name": "Cores", "key": "NCPUS", "scores": [{"name": "HEPscore23", "value": 11.5}]},
    {"name": "Memory", "key": "AllocTRES", "sub_key": "mem", "key_type": "IntegerMega"},
    {"name": "GPU", "key": "AllocTRES", "sub_key": "gres/gpu", "optional": True},
]
PARTITION = {"name": "partition", "key": "Partition", "key_type": "String"}


class EpilogSite(Site):
    """A state folder with an epilog collector and, if it has options, a Slurm collector."""

    def configure(self, *, slurm: Any = None, **epilog: Any) -> None:  # Any: YAML
        """Write the configuration anew."""
        collectors = {"slurm_epilog": {"kind": "slurm_epilog", "interval": "1s", "lag": "1s", **epilog}}
        if slurm is not None:
            collectors["slurm"] = {"kind": "slurm", "interval": "2s", "lag": "1s", **slurm}
        document = {
            "state_dir": str(self.state),
            "api": {"listen": ["127.0.0.1:0"]},
            "metrics": {"database": {"interval": "200ms"}},
            "collectors": collectors,
        }
        self.file.write_text(json.dumps(document))

    def nothing_is_wrong(self) -> None:
        assert self.command("records", "--differences", "--output", "ndjson").stdout == ""
        assert self.rows("SELECT reason FROM quarantine") == []


def ended(job_id: str, state: str = "") -> bool:
    """Tell if no task of the array is left in the state (without one: at all)."""
    # Not --jobs: squeue calls one that is long over an invalid id.
    return job_id not in run_slurm("squeue", "-h", "-o", "%F", *(["-t", state] if state else [])).split()


def copied(files: Sequence[Path], folder: Path) -> Path:
    folder.mkdir()
    for file in files:
        shutil.copy2(file, folder)  # with its time
    return folder


def test_a_thousand_tasks_with_the_daemon_down_for_half_of_them(noted: NotedJobs, tmp_path: Path) -> None:
    rules: Any = {"components": KNOWN_TO_SCONTROL, "meta": [PARTITION]}
    beginning = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).isoformat()
    slurm = {"sacct": ["sacct", f"--jobs={noted.array}"], "earliest_datetime": beginning, "slice": "1d", **rules}
    spool, chance = noted.folder / "array", random.Random(4)  # noqa: S311 moments, no secrets
    site = EpilogSite(tmp_path, spool=str(spool), same_source_as="slurm", slurm=slurm, **rules)
    wait_until(lambda: len(list(spool.iterdir())) >= TASKS // 2, seconds=420)
    run_slurm("scontrol", "release", f"{noted.array}_[{TASKS // 2 + 1}-{TASKS}]")
    kills = 0
    while kills < 2 or not ended(noted.array):
        with site.daemon() as process:
            site.url()
            time.sleep(chance.uniform(0, 3))
            process.kill()
            kills += 1
    with site.daemon():
        wait_until(lambda: list(spool.iterdir()) == [], site.last_words, 240)
        wait_until(lambda: site.delivered() and len(site.served()) >= TASKS, site.last_words, 120)
        assert run_slurm("sacct", "-nX", "-j", noted.array, "-o", "State").split() == ["COMPLETED"] * TASKS
        served = {record["record_id"]: plain(record) for record in site.served()}
        assert len(served) == len(site.served()) == TASKS
        assert {name: expected_task(record) for name, record in served.items()} == tasks(noted.array)
        site.nothing_is_wrong()


def expected_task(record: Plain) -> Any:  # Any: what is compared
    return record["start_time"], record["stop_time"], record["components"], record["meta"]["user_id"]


def tasks(array: str) -> Any:  # Any: the same
    rows = sacct(array, "Start", "End", "User")
    at = {
        row["JobID"]: [datetime.fromisoformat(row[key]).replace(tzinfo=UTC) for key in ("Start", "End")] for row in rows
    }
    return {f"slurm-{row['JobID']}": (*at[row["JobID"]], {"Cores": 1, "Memory": 20}, [row["User"]]) for row in rows}


def test_whatever_ends_in_slurm_is_accounted_for_as_by_sacct(
    noted: NotedJobs, slurm_jobs: SlurmJobs, tmp_path: Path
) -> None:
    spool = copied(notes_of(noted.folder / "all", list(slurm_jobs.ids.values())), tmp_path / "spool")
    site = EpilogSite(tmp_path, spool=str(spool), components=SLURMS, meta=META)
    once(site)
    assert own(objects_of(site), slurm_jobs) == expected_records(slurm_jobs)
    assert list(spool.iterdir()) == []


SLURMS: Any = [
    {"name": "Cores", "key": "NCPUS"},
    {"name": "Memory", "key": "AllocTRES", "sub_key": "mem", "key_type": "IntegerMega", "optional": True},
    {"name": "TotalCPU", "key": "TotalCPU", "key_type": "Time", "optional": True},
    {"name": "MaxRSS", "key": "MaxRSS", "key_type": "Size", "optional": True},
    {"name": "GPU", "key": "AllocTRES", "sub_key": "gres/gpu", "optional": True},
]


def test_what_scontrol_remembers_says_the_same(noted: NotedJobs, slurm_jobs: SlurmJobs, tmp_path: Path) -> None:
    spool = copied(notes_of(noted.folder / "all", list(slurm_jobs.ids.values())), tmp_path / "spool")
    site = EpilogSite(tmp_path, spool=str(spool), components=KNOWN_TO_SCONTROL, meta=[PARTITION])
    dry = site.command("collect", "slurm_epilog", "--dry-run")
    assert (dry.returncode, len(list(spool.iterdir()))) == (0, len(dry.stdout.splitlines())), dry.stderr
    once(site)
    found = own(objects_of(site), slurm_jobs)
    assert {name: without_steps(record) for name, record in found.items()} == {
        name: without_steps(record) for name, record in expected_records(slurm_jobs).items()
    }


def without_steps(record: Plain) -> Plain:
    meta = {name: record["meta"][name] for name in ("site_id", "user_id", "group_id", "partition")}
    components = {name: amount for name, amount in record["components"].items() if name not in {"TotalCPU", "MaxRSS"}}
    return {**record, "meta": meta, "components": components}


def test_a_job_in_a_jobs_name_forges_nothing(noted: NotedJobs, tmp_path: Path) -> None:
    wait_until(lambda: ended(noted.forged) and notes_of(noted.folder / "all", [noted.forged]))
    spool = copied(notes_of(noted.folder / "all", [noted.forged]), tmp_path / "spool")
    site = EpilogSite(tmp_path, spool=str(spool))
    wait_until(lambda: sacct(noted.forged, "End")[0]["End"] != "Unknown")
    time.sleep(1)  # lag
    once(site)
    [record] = objects_of(site)
    [row] = sacct(noted.forged, "Start", "NCPUS")
    assert (record["record_id"], record["meta"]["user_id"]) == (f"slurm-{noted.forged}", ["dave"])
    assert {each["name"]: each["amount"] for each in record["components"]} == {"Cores": 2, "Memory": 200}
    assert record["start_time"] == f"{row['Start']}Z"


def test_a_period_is_collected_again_by_sacct(slurm_jobs: SlurmJobs, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    only = ["sacct", f"--jobs={','.join(slurm_jobs.ids.values())}"]
    site = EpilogSite(tmp_path, spool=str(tmp_path / "spool"), components=SLURMS, meta=META, sacct=only)
    period = ("--from", slurm_jobs.since.isoformat(), "--to", slurm_jobs.until.isoformat())
    done = site.command("collect", "slurm_epilog", *period)
    assert done.returncode == 0, done.stderr
    assert own(objects_of(site), slurm_jobs) == expected_records(slurm_jobs)


def once(site: Site) -> None:
    done = site.command("collect", "slurm_epilog", "--once")
    assert done.returncode == 0, done.stderr
    assert site.rows("SELECT reason FROM quarantine") == []


def objects_of(site: Site) -> list[Any]:  # Any: JSON
    printed = site.command("records", "--output", "ndjson").stdout
    return [json.loads(line) for line in printed.splitlines()]
