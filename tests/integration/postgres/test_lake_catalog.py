"""A lake whose catalog is in PostgreSQL: two daemons sync at the same moment, and a hub asks for all of it."""

import asyncio
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from auditord.config.model import Configuration
from auditord.lake.opening import ConfiguredLake
from auditord.lake.syncing import sync
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord_hookspecs import AggregateQuery, Component, ComponentUsage, MetaValue, Record
from tests.integration.lake.killed import LOG

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # some five seconds

START = datetime(2026, 1, 31, 20, tzinfo=UTC)


def job(number: int, site: str) -> Record:
    stop = START + timedelta(days=number, hours=1)
    return Record(f"job-{number}", START, (Component("Cores", number, ()),), stop, {"site_id": (site,)})


async def test_daemons_carry_at_once_and_a_hub_sums_up(empty_postgres_url: str, tmp_path: Path) -> None:
    section = {"catalog": empty_postgres_url, "warehouse": str(tmp_path / "lake"), "scope": "all"}
    configuration = Configuration.model_validate({"state_dir": str(tmp_path), "lake": section})

    async def put(site: str) -> None:
        with closing(ConfiguredLake(configuration)) as lake:
            async with open_store(f"sqlite:///{tmp_path}/{site}.db", counted_keys=()) as store:
                for numbers in (range(1, 4), range(4, 7), range(7, 10)):
                    records = [job(number, site) for number in numbers]
                    await store.add_all(records, Provenance(START), Duplicates.SAME_RUN, atomic=True)
                    await sync(store, lake.table, site, LOG)

    with closing(ConfiguredLake(configuration)) as lake:
        lake.table.open()
    await asyncio.gather(put("A"), put("B"))
    with closing(ConfiguredLake(configuration)) as lake:
        answer = await lake.aggregate(AggregateQuery(by=(MetaValue("site_id"),), usage=(ComponentUsage("Cores"),)))
        facts = lake.table.facts()
    assert [(group.key, group.records, group.usage[0].sums.amount) for group in answer.groups] == [
        (("A",), 9, 45),
        (("B",), 9, 45),
    ]
    assert answer.snapshot is not None
    assert (answer.snapshot.number, facts.records, set(facts.positions)) == (facts.snapshot_id, 18, {"A", "B"})
