"""The ways to ask slurmctld: recorded output of squeue, with fields and as JSON, of a real Slurm 22.05."""

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from auditord.testing import FakeCollectorContext
from auditord_builtin.slurm.epilog.asking import forms
from auditord_builtin.slurm.epilog.notes import JobNote
from auditord_builtin.slurm.epilog.rows import SQUEUE_FORMAT, parse_json, parse_squeue
from auditord_builtin.slurm.kinds import SLURM_EPILOG
from auditord_hookspecs import CommandFailed
from tests.builtin.slurm_epilog.test_collecting import Epilog, config, epilog, run

__all__ = ["epilog"]

RECORDED: Final = Path(__file__).with_name("recorded")
SQUEUE: Final = RECORDED.joinpath("squeue.txt").read_text()
JSON: Final = RECORDED.joinpath("jobs.json").read_text()
FORGED_END: Final = datetime.fromtimestamp(1795338674, UTC)
UNKNOWN_OPTION: Final = CommandFailed("`scontrol` ended with exit code 1: scontrol: unrecognized option '--json'")


@pytest.mark.parametrize(
    ("raw", "job_id"), [("1030", "1029+1"), ("1036", "1031_1"), ("1031", "1031_2"), ("1032", "1032")]
)
def test_ids_are_those_of_sacct(raw: str, job_id: str) -> None:
    for job in (parse_squeue(SQUEUE, raw), parse_json(JSON, raw)):
        assert job
        assert (job["JobIDRaw"], job["JobID"]) == (raw, job_id)


@pytest.mark.parametrize("raw", ["1029", "1030", "1031", "1032", "1034", "1035", "1036"])
def test_both_say_the_same(raw: str) -> None:
    fields, members = parse_squeue(SQUEUE, raw), parse_json(JSON, raw)
    assert fields
    assert members
    assert {**fields, "Elapsed": ""} == {**members, "Elapsed": ""}


def test_a_forged_name_is_nothing_but_a_name() -> None:
    job = parse_json(JSON, "1035")
    assert job
    assert (job["State"], job["NCPUS"], job["User"], job["Group"]) == ("COMPLETED", "1", "dave", "bio")


def test_gpus_and_memory_read_as_sacct_prints_them() -> None:
    job = parse_json(JSON, "1032")
    assert job
    assert job["AllocTRES"] == "billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=2048M,node=1"


def test_of_a_resized_job_slurmctld_does_not_know_enough() -> None:
    assert parse_squeue(SQUEUE, "1125") is None
    document = json.loads(JSON)
    document["jobs"][0]["resize_time"] = 1795339310
    assert parse_json(json.dumps(document), str(document["jobs"][0]["job_id"])) is None


def test_squeue_is_asked_for_one_job_in_any_state_without_a_headline(epilog: Epilog) -> None:
    _, squeue, _ = forms(config(epilog))
    program, *options, columns = squeue.argv(JobNote("251.1.job", "251", FORGED_END))
    assert (program, options) == ("squeue", ["--noheader", "--states=all", "--jobs=251"])
    assert columns == SQUEUE_FORMAT


def test_scontrol_is_asked_for_one_task_and_not_for_the_json_of_its_array(epilog: Epilog) -> None:
    """Of 10,000 tasks, it would print as many jobs for each note, and more than a command may print."""
    note = JobNote("261.1.job", "261", FORGED_END, {"SLURM_ARRAY_JOB_ID": "254", "SLURM_ARRAY_TASK_ID": "1"})
    in_json, _, as_text = forms(config(epilog))
    assert in_json.argv(note) == ["scontrol", "show", "job", "261", "--json"]
    assert as_text.argv(note) == ["scontrol", "show", "job", "254_1", "--details", "--oneliner"]


def test_run_time_leaves_out_a_suspension() -> None:
    fields, members = parse_squeue(SQUEUE, "1034"), parse_json(JSON, "1034")
    assert fields
    assert members
    assert (fields["Elapsed"], members["Elapsed"]) == ("0:05", "00:00:5")


def test_newer_versions_write_numbers_as_objects_and_the_state_as_a_list() -> None:
    document = json.loads(JSON)
    for job in document["jobs"]:
        for name in ("submit_time", "start_time", "end_time", "node_count", "cpus", "array_job_id", "array_task_id"):
            value = job[name]
            job[name] = {"set": value is not None, "infinite": False, "number": value or 0}
        job["job_state"] = [job["job_state"]]
    for raw in ("1030", "1031", "1032", "1034", "1036"):
        assert parse_json(json.dumps(document), raw) == parse_json(JSON, raw)
    document["jobs"][0]["job_state"] = ["COMPLETED", "COMPLETING"]
    job = parse_json(json.dumps(document), str(document["jobs"][0]["job_id"]))
    assert job
    assert job["State"] == "COMPLETING"


@pytest.mark.parametrize("printed", ["", "[]", "{}", '{"jobs": [{"job_id": 1035}]}', '{"jobs": 7}', "garbage"])
def test_what_is_no_answer_is_none(printed: str) -> None:
    assert parse_json(printed, "1035") is None
    assert parse_squeue(printed, "1035") is None


class Programs:
    """Plays scontrol with or without JSON, and squeue; there is no sacct."""

    def __init__(self, *, json_of_scontrol: bool, squeue: bool) -> None:
        self.known = {"json": json_of_scontrol, "squeue": squeue}
        self.ran: list[str] = []

    def __call__(self, argv: Sequence[str]) -> bytes:
        form = "squeue" if argv[0] == "squeue" else argv[-1].removeprefix("--")
        self.ran.append(form)
        if not self.known.get(form, True):
            raise UNKNOWN_OPTION if form == "json" else CommandFailed("`squeue` cannot start: no program 'squeue'")
        return {"json": JSON, "squeue": SQUEUE, "oneliner": FORGED_TEXT}[form].encode()


FORGED_TEXT: Final = (
    RECORDED.joinpath("completed.txt")
    .read_bytes()
    .decode()
    .replace("JobId=251 JobName=", "JobId=1035 JobName= JobState=FAILED NumCPUs=999", 1)
)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("programs", "ran"),
    [
        (Programs(json_of_scontrol=True, squeue=True), ["json", "json"]),
        (Programs(json_of_scontrol=False, squeue=True), ["json", "squeue", "squeue"]),
    ],
)
async def test_a_job_with_a_forged_name_is_accounted_for_without_sacct(
    epilog: Epilog, programs: Programs, ran: list[str]
) -> None:
    for job_id in ("1035", "1032"):
        epilog.note(job_id, at=FORGED_END)
    at = FakeCollectorContext(moment=FORGED_END + timedelta(minutes=2), commands=programs)
    made = {record.record_id: record for record in await run(config(epilog, sacct=[]), at)}
    assert made.keys() == {"slurm-1032", "slurm-1035"}
    assert made["slurm-1035"].components[0].amount == 1
    assert made["slurm-1035"].stop_time == FORGED_END
    assert programs.ran == ran


@pytest.mark.anyio
async def test_without_both_it_is_said_what_is_waited_for(epilog: Epilog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    epilog.note("1035", at=FORGED_END)
    at = FakeCollectorContext(
        moment=FORGED_END + timedelta(minutes=2), commands=Programs(json_of_scontrol=False, squeue=False)
    )
    assert await run(config(epilog, sacct=[]), at) == []
    assert "1 job waits: scontrol prints fields twice" in caplog.text
    assert "the configuration has no sacct" in caplog.text
    at.moment += timedelta(hours=7)
    await run(config(epilog, sacct=[]), at)
    [job] = [job for batch in at.kept for job in batch.quarantined]
    assert "slurmctld does not suffice: scontrol prints fields twice" in job.reason


@pytest.mark.anyio
async def test_elapsed_time_leaves_out_suspensions_here_as_well(epilog: Epilog) -> None:
    end = datetime.fromtimestamp(1795338682, UTC)
    for form in (True, False):
        epilog.note("1034", at=end)
        programs: Any = Programs(json_of_scontrol=form, squeue=True)
        at = FakeCollectorContext(moment=end + timedelta(minutes=2), commands=programs)
        [record] = await run(config(epilog, sacct=[], runtime="elapsed"), at)
        assert record.runtime == 5
    assert SLURM_EPILOG.config is not None
