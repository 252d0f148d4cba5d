"""Recorded output of a real scontrol, and what users could write into it."""

from pathlib import Path
from typing import Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from auditord_builtin.slurm.epilog.rows import COLUMNS, parse_job

RECORDED: Final = Path(__file__).with_name("recorded")


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_bytes().decode()


def test_a_job_reads_as_sacct_prints_it() -> None:
    job = parse_job(recorded("gpu"))
    expected = (
        "JobID=256 JobIDRaw=256 User=alice UID=20101 Group=atlas GID=20100 Account=physics QOS=normal State=COMPLETED "
        "Restarts=0 Elapsed=00:00:01 Submit=1795174062 Start=1795174063 End=1795174064 Partition=gpu NodeList=n01 "
        "NNodes=1 AllocNodes=1 NCPUS=4 AllocCPUS=4 "
        "AllocTRES=billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=2048M,node=1"
    )
    assert job
    assert job == {name: value for name, _, value in (pair.partition("=") for pair in expected.split())}
    assert set(job) | {"Cluster"} >= COLUMNS


@pytest.mark.parametrize(
    ("name", "job_id", "raw"),
    [("array", "254_1", "261"), ("array_last", "254_4", "254"), ("het", "257+1", "258"), ("hostile", "259", "259")],
)
def test_ids_are_those_of_sacct(name: str, job_id: str, raw: str) -> None:
    job = parse_job(recorded(name))
    assert job
    assert (job["JobID"], job["JobIDRaw"]) == (job_id, raw)


def test_memory_is_that_of_all_nodes() -> None:
    job = parse_job(recorded("steps"))
    assert job
    assert (job["AllocTRES"], job["NodeList"]) == ("billing=4,cpu=4,mem=800M,node=2", "n[01-02]")


def test_half_a_gibibyte_is_printed_as_sacct_does() -> None:
    job = parse_job(recorded("gpu").replace("mem=2G", "mem=1.50G"))
    assert job
    assert "mem=1536M" in job["AllocTRES"]


def test_no_node_is_no_text() -> None:
    job = parse_job(recorded("cancelled_pending"))
    assert job
    assert job["NodeList"] == ""


def test_an_account_that_is_not_set_is_no_text() -> None:
    job = parse_job(recorded("gpu").replace("Account=physics", "Account=(null)").replace("QOS=normal", "QOS=(null)"))
    assert job
    assert (job["Account"], job["QOS"], job["NodeList"]) == ("", "", "n01")


def test_a_newer_slurm_names_what_was_allocated() -> None:
    text = recorded("gpu").replace(" TRES=", " ReqTRES=cpu=9,mem=9G,node=9,billing=9 AllocTRES=")
    job = parse_job(text)
    assert job
    assert "cpu=4" in job["AllocTRES"]


def test_of_a_resized_job_slurmctld_does_not_know_enough() -> None:
    assert parse_job(recorded("gpu").replace(" StartTime=", " ResizeTime=1795174063 StartTime=")) is None


def test_a_group_may_have_blanks_in_its_name() -> None:
    job = parse_job(recorded("gpu").replace("GroupId=atlas(", "GroupId=domain users("))
    assert job
    assert job["Group"] == "domain users"


@pytest.mark.parametrize("name", ["array_base", "het_base"])
def test_several_jobs_are_not_taken_for_one(name: str) -> None:
    assert parse_job(recorded(name)) is None


@pytest.mark.parametrize("owner", ["(null)", "nobody", ""])
def test_who_has_no_name_here_may_have_one_in_the_database(owner: str) -> None:
    assert parse_job(recorded("gpu").replace("UserId=alice(", f"UserId={owner}(")) is None


@pytest.mark.parametrize("text", ["", "\n", "slurm_load_jobs error", recorded("gpu")[:900], recorded("gpu")[20:]])
def test_what_is_not_whole_is_not_believed(text: str) -> None:
    assert parse_job(text) is None


def test_a_whole_job_in_a_name_is_not_believed() -> None:
    real = recorded("completed")
    forged = real.replace("NumCPUs=2", "NumCPUs=1").replace("alice(20101)", "root(0)").strip()
    for text in (
        real.replace("JobName=completed", f"JobName=x\n{forged}\nJobId=9 JobName=y"),
        real.replace("JobName=completed", f"JobName=x {forged}"),
        real.replace("Command=(null)", f"Command={forged}"),
        real.replace("WorkDir=/", f"WorkDir=/ {forged}"),
    ):
        assert parse_job(text) is None


FIELDS: Final = [part for part in recorded("completed").split(" ") if "=" in part]
HOSTILE: Final = st.lists(
    st.one_of(
        st.sampled_from(FIELDS),
        st.sampled_from(["NumCPUs=1", "UserId=root(0)", "AllocTRES=cpu=1", "TRES=cpu=1", "JobId=251", "EndTime=0"]),
        st.sampled_from([" ", "\n", "\t", "=", "\x1f", "\u2028", "\r", "(null)"]),
        st.text(max_size=5),
    ),
    max_size=12,
).flatmap(lambda parts: st.sampled_from([" ".join(parts), "".join(parts), "\n".join(parts)]))


@given(name=HOSTILE, comment=HOSTILE, command=HOSTILE, folder=HOSTILE)
def test_whatever_users_write_the_figures_are_slurms_or_nobodys(
    name: str, comment: str, command: str, folder: str
) -> None:
    real = recorded("completed")
    text = (
        real.replace("JobName=completed", f"JobName={name}")
        .replace("Command=(null)", f"Command={command}")
        .replace("WorkDir=/", f"WorkDir=/{folder} Comment={comment} ")
    )
    assert parse_job(text) in (None, parse_job(real))


@given(name=st.text(max_size=30))
def test_ordinary_names_are_no_reason_for_doubt(name: str) -> None:
    assume("=" not in name)
    real = recorded("completed")
    assert parse_job(real.replace("JobName=completed", f"JobName={name}")) == parse_job(real)
