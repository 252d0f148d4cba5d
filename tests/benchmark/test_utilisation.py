"""One month of the utilisation report from two million records, beside the barest SQL over the same columns.

By hand, with the figures shown: ``pytest -m benchmark -s tests/benchmark/test_utilisation.py``.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
import pytest

from auditord.store import Duplicates, Provenance
from auditord.store.reading import StoredRecords
from auditord.store.store import RecordStore
from auditord.testing import FakePluginContext
from auditord_builtin.utilisation.config import UtilisationConfig
from auditord_builtin.utilisation.periods import parse_period
from auditord_builtin.utilisation.report import as_csv, ask, report_on
from auditord_hookspecs import Component, Record, Records
from tests.benchmark.in_turns import in_turns
from tests.benchmark.test_aggregates import BATCH, BEGIN, HEP, ROUNDS, bare_connection, seconds_of_bare_sql
from tests.benchmark.test_aggregates import job as plain_job

FEBRUARY: Final = parse_period("2024-02")
IN_COLUMNS: Final[dict[str, Any]] = {"memory_peak": None, "energy": None}
CONFIGS: Final = {
    "what columns hold": UtilisationConfig.model_validate({"benchmark": HEP, "components": IN_COLUMNS}),
    "with the peak of memory and energy from documents": UtilisationConfig(benchmark=HEP),
}

_COLUMNS: Final = "site, user_group, user_name, score_set, cores IS NULL, total_cpu IS NULL"
_SUMS: Final = "count(*), sum({runtime}), sum(cores * ({runtime})), sum(total_cpu), sum(gpu * ({runtime}))"
_WHERE: Final = "FROM {records} WHERE stop_time >= {begin} AND stop_time < {end}"
_DOCUMENT: Final = {
    "sqlite": "(SELECT sum(json_extract(each.value, '$.amount')) FROM json_each(document, '$.components') AS each"
    " WHERE json_extract(each.value, '$.name') = 'NAME')",
    "postgresql": "(SELECT sum((each ->> 'amount')::numeric) FROM jsonb_array_elements(document::jsonb -> 'components')"
    " AS each WHERE each ->> 'name' = 'NAME')",
}


def job(number: int) -> Record:
    """A job whose highest use of memory is known."""
    record = plain_job(number)
    peak = Component("MaxRSS", number * 32_452_843 % 2_000_000_000, ())
    return msgspec.structs.replace(record, components=(*record.components, peak))


def bare_sql(url: str, config: UtilisationConfig) -> str:
    """The same sums over the same columns, and nothing else."""
    if config.components.memory_peak is None:
        return f"SELECT {_COLUMNS}, {_SUMS}, sum(memory) {_WHERE} GROUP BY 1, 2, 3, 4, 5, 6"
    document = _DOCUMENT[url.partition(":")[0]]
    peak, energy = document.replace("NAME", "MaxRSS"), document.replace("NAME", "Energy")
    table = f"(SELECT *, {peak} AS peak, {energy} AS energy {_WHERE}{{sealed}}) AS looked_up"
    more = "memory IS NULL, peak IS NULL, energy IS NULL"
    bytes_held = "total" if url.startswith("sqlite:") else "sum"  # 64 bits do not hold it
    sums = f"{_SUMS}, {bytes_held}(memory * ({{runtime}})), {bytes_held}(peak * ({{runtime}})), sum(energy)"
    sql = f"SELECT {_COLUMNS}, {more}, {sums} FROM {table} GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9"  # noqa: S608 ours
    # Without this the documents are looked into as often as the peak is named.
    return sql.replace("{sealed}", " LIMIT -1" if url.startswith("sqlite:") else " OFFSET 0")


async def fill(store: RecordStore, numbers: Sequence[int]) -> None:
    for first in range(0, len(numbers), BATCH):
        records = [job(number) for number in numbers[first : first + BATCH]]
        await store.add_all(records, Provenance(BEGIN, "task:benchmark"), Duplicates.SAME_RUN, atomic=True)


async def made(records: Records, config: UtilisationConfig) -> str:
    return as_csv(report_on(await ask(config, records, FEBRUARY), config, FEBRUARY))


@pytest.mark.anyio
async def test_twenty_thousand_records_give_the_report_of_a_plain_evaluation(store: RecordStore, url: str) -> None:
    numbers = range(0, 2_000_000, 100)
    await fill(store, numbers)
    plain = FakePluginContext(stored=[job(number) for number in numbers])
    for config in CONFIGS.values():
        report = await made(StoredRecords(store), config)
        assert report == await made(plain, config)
        assert report.count("\n") > 1_000
        assert seconds_of_bare_sql(url, bare_sql(url, config)) > 0


@pytest.mark.benchmark
@pytest.mark.anyio
async def test_a_month_of_two_million_records_beside_bare_sql(store: RecordStore, url: str) -> None:
    await fill(store, range(2_000_000))
    print(f"\n{url.partition(':')[0]}")  # noqa: T201 the figures are what it is for
    for name, config in CONFIGS.items():
        lines = (await made(StoredRecords(store), config)).count("\n")
        with bare_connection(url) as run:
            ours, bare = partial(made, StoredRecords(store), config), partial(run, bare_sql(url, config))
            turns = await in_turns(url, ROUNDS, ours, bare)
        print(f"{name}: a report of {lines} lines {turns}")  # noqa: T201 the same
