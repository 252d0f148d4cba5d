"""The manual's chapter on the lake: its Python reads a lake that this daemon made, as it stands."""

import re
from pathlib import Path

import anyio
import pytest

from auditord.lake.syncing import sync
from auditord.manual import text_of
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.testing import EPOCH, make_record
from tests.integration.lake.killed import LOG, lake_in


async def make_lake(folder: Path) -> None:
    table = lake_in(folder / "lake")
    async with open_store(f"sqlite:///{folder}/records.db", counted_keys=()) as store:
        records = [make_record(str(number), cores=8, site_id="Freiburg") for number in range(3)]
        await store.add_all(records, Provenance(EPOCH, "test", None), Duplicates.SAME_RUN, atomic=False)
        await sync(store, table, "daemon", LOG)
    table.close()


def test_its_python_sums_up_what_was_synced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    anyio.run(make_lake, tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", text_of("lake"), re.DOTALL)
    assert block.count("sqlite:////srv/auditord/lake/catalog.db") == 1
    exec(block.replace("/srv/auditord/lake/catalog.db", f"{tmp_path}/lake/catalog.db"), {})  # noqa: S102
    assert re.search(r"│ Freiburg +│ +2026 │ +24\.0 │", capsys.readouterr().out)
