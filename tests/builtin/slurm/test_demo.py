import sys
from pathlib import Path

import pytest

from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.demo import RECORDED, SACCT, replay
from auditord_builtin.slurm.kinds import SLURM
from auditord_hookspecs.checks import Severity
from tests.real_context import RealContext

pytestmark = pytest.mark.anyio


def demo_config() -> SlurmConfig:
    return SlurmConfig(sacct=(sys.executable, "-IS", str(SACCT)), earliest_datetime=RECORDED.start)


async def test_the_recorded_accounting_is_replayed_through_the_collector() -> None:
    context = RealContext(moment=RECORDED.stop + demo_config().lag)
    records = {record.record_id: record for record in await context.keep(SLURM.collect(demo_config(), context))}
    assert len(records) == 75
    assert {"slurm-24", "slurm-24-1795169849", "slurm-44+0", "slurm-44+1", "slurm-41_7"} <= records.keys()
    gpus = {
        record_id: part.amount
        for record_id, record in records.items()
        for part in record.components
        if part.name == "GPU"
    }
    assert gpus == {"slurm-37": 1, "slurm-38": 2, "slurm-39": 3, "slurm-40": 1}
    assert sum(batch.skipped.get("never started", 0) for batch in context.kept) == 3
    assert not any(batch.quarantined for batch in context.kept)
    assert not await context.keep(SLURM.collect(demo_config(), context))


async def test_the_demo_has_the_labels_that_init_proposes() -> None:
    config = SlurmConfig.model_validate(replay())
    context = RealContext(moment=RECORDED.stop + config.lag)
    records = await context.keep(SLURM.collect(config, context))
    assert {each for record in records for each in (record.meta or {})["account"]} >= {"biology", "physics"}
    assert {each for record in records for each in (record.meta or {})["partition"]} >= {"short"}


async def test_doctor_finds_nothing_wrong_with_it() -> None:
    assert SLURM.check is not None
    context = RealContext(moment=RECORDED.stop)
    findings = [each async for each in SLURM.check(demo_config(), context)]
    assert {each.severity for each in findings} == {Severity.OK}, findings
    assert {"columns", "accounting"} <= {each.subject for each in findings}


async def test_the_player_needs_nothing_but_an_interpreter(tmp_path: Path) -> None:
    copied = [tmp_path / name for name in ("sacct.py", "recorded.txt")]
    for path in copied:
        path.write_bytes(SACCT.with_name(path.name).read_bytes())
    context = RealContext(moment=RECORDED.stop)
    config = SlurmConfig(sacct=(sys.executable, "-IS", str(copied[0])), earliest_datetime=RECORDED.start)
    assert await context.keep(SLURM.collect(config, context))
