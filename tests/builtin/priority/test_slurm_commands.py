"""The plugin's commands in a real Slurm: a partition's priority and an account's fair share are those computed."""

import uuid
from collections.abc import Generator

import pytest

from auditord.testing import make_record
from auditord_builtin.priority.config import PriorityConfig
from auditord_builtin.priority.running import PrioritiesNotSet, set_priorities
from tests.builtin.priority.real_commands import RealCommands
from tests.slurm_jobs import missing_slurm, run_slurm

pytestmark = pytest.mark.anyio

FAIR_SHARE = "sacctmgr -i modify account {2} set fairshare={priority}"
JOB_FACTOR = "scontrol update PartitionName={1} PriorityJobFactor={priority}"


@pytest.fixture
def name() -> Generator[str, None, None]:
    """Of a partition and an account that nobody else has."""
    if reason := missing_slurm():
        pytest.skip(reason)
    name = f"priority{uuid.uuid4().hex[:8]}"
    run_slurm("scontrol", "create", f"PartitionName={name}", "Nodes=n01", "Hidden=YES")
    try:
        run_slurm("sacctmgr", "-i", "add", "account", name)
        yield name
    finally:
        run_slurm("sacctmgr", "-i", "delete", "account", name)
        run_slurm("scontrol", "delete", f"PartitionName={name}")


def job_factor(partition: str) -> str:
    words = run_slurm("scontrol", "show", "partition", partition).split()
    return next(word for word in words if word.startswith("PriorityJobFactor="))


async def test_slurm_has_the_priorities_that_were_computed(name: str) -> None:
    records = [make_record("1", cores=3, group_id="known"), make_record("2", cores=1, group_id="unknown")]
    config = PriorityConfig.model_validate(
        {
            "components": {"Cores": None},
            "group_mapping": {"unknown": ["no-such-partition", "no-such-account"], "known": [name, name]},
            "commands": [JOB_FACTOR, FAIR_SHARE],
            "max_priority": 65_335,
        }
    )
    context = RealCommands(stored=records)
    with pytest.raises(PrioritiesNotSet, match="1 of 2 groups, all others ran; unknown: s"):
        await set_priorities(config, context)
    assert job_factor(name) == "PriorityJobFactor=49001"
    assert run_slurm("sacctmgr", "-nP", "show", "assoc", f"account={name}", "format=fairshare") == "49001"
    assert list(context.state["last"]) == ["known"]
