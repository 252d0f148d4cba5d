"""The inventory of a pool for audits: the same jobs, by the same rules, as were collected."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("classad2", reason="pip install 'auditord[htcondor]'")

from auditord.config.kinds import why_not_audited
from auditord.testing import FakeCollectorContext
from auditord_builtin.htcondor.collecting import HTCONDOR, reach
from auditord_hookspecs import AuditordError, Batch, Produced, Window
from tests.builtin.htcondor.history_player import EPOCH, Player
from tests.builtin.htcondor.test_htcondor_collecting import config, context

pytestmark = pytest.mark.anyio

NOW = datetime.fromtimestamp(EPOCH, UTC)
HOUR = timedelta(hours=1)


async def listed(chosen: Any, at: FakeCollectorContext) -> list[Batch]:
    assert HTCONDOR.inventory is not None
    return [batch async for batch in HTCONDOR.inventory(chosen, at)]


def ids(batches: list[Batch]) -> list[str]:
    records = [each for batch in batches for each in batch.records]
    return [(each.record if isinstance(each, Produced) else each).record_id for each in records]


async def test_what_was_collected_is_listed_again(tmp_path: Path) -> None:
    pool = Player(tmp_path)
    for hour in range(5, 0, -1):
        pool.add("s1", hour, end=EPOCH - hour * 3600)
    at = context(pool)
    collected = [record.record_id for record in await at.keep(HTCONDOR.collect(config(), at))]
    again = context(pool, window=Window(NOW - 24 * HOUR, NOW), dry_run=True, checkpoint=at.checkpoint)
    assert sorted(ids(await listed(config(), again))) == sorted(collected)
    assert len(collected) == 5


async def test_an_answer_that_may_have_a_gap_is_no_inventory(tmp_path: Path) -> None:
    pool = Player(tmp_path)
    for hour in range(5, 0, -1):
        pool.add("s1", hour, end=EPOCH - hour * 3600)
    pool.disturb(s1={"cap": 2})
    with pytest.raises(AuditordError, match="may have a gap"):
        await listed(config(), context(pool, window=Window(NOW - 24 * HOUR, NOW), dry_run=True))


async def test_the_beginning_is_that_of_the_first_run(tmp_path: Path) -> None:
    pool = Player(tmp_path)
    pool.add("s1", 1)
    at = context(pool)
    assert (await reach(config(), at)).collects == NOW - 24 * HOUR
    await at.keep(HTCONDOR.collect(config(), at))
    later = context(pool, checkpoint=at.checkpoint)
    assert (await reach(config(earliest_datetime=NOW), later)).collects == NOW - 24 * HOUR
    assert (await reach(config(), later)).remembers is None


def test_files_of_single_jobs_are_no_history(tmp_path: Path) -> None:
    assert why_not_audited(HTCONDOR, config()) is None
    chosen = config(schedd_names=[], per_job_history_dir=str(tmp_path))
    assert "not a history" in (why_not_audited(HTCONDOR, chosen) or "")
