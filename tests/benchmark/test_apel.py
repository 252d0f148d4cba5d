"""One month of APEL's summaries from two million records, beside the barest SQL over the same columns.

By hand, with the figures shown: ``pytest -m benchmark -s tests/benchmark/test_apel.py``.
"""

import time
from functools import partial
from typing import Final

import pytest

from auditord.store.reading import StoredRecords
from auditord.store.store import RecordStore
from auditord.testing import FakePluginContext
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.messages import Summaries, render, sync_message
from auditord_builtin.apel.summaries import summaries
from auditord_hookspecs.months import Month
from tests.benchmark.in_turns import in_turns
from tests.benchmark.test_aggregates import ROUNDS, bare_connection, fill, job, seconds_of_bare_sql

FEBRUARY: Final = Month(2024, 2)
SITE: Final = "SITE-A"
CONFIG: Final = ApelConfig.model_validate(
    {
        "site": {"sites_to_report": {SITE: ["site-0", "site-1"], "SITE-B": ["site-2"]}},
        "messaging": {"client_cert": "/c", "client_key": "/k"},
        "benchmarks": [{"type": "HEPscore23", "score": "hepscore23"}, {"type": "hepspec", "score": "HEPSPEC06"}],
        "summary_fields": {
            "mandatory": {
                "VO": {"type": "MetaField", "name": "group_id"},
                "SubmitHost": {"type": "MetaField", "name": "submit_host"},
            },
            "optional": {"GlobalUserName": {"type": "MetaField", "name": "user_id"}},
        },
    }
)
BARE: Final = (
    "SELECT site, user_group, {submit_host}, cores, user_name, score_set, total_cpu IS NULL, count(*), min(stop_time),"
    " max(stop_time), sum({runtime}), sum(total_cpu) FROM {records}"
    " WHERE stop_time >= {begin} AND stop_time < {end} AND site IN ('site-0', 'site-1') GROUP BY 1, 2, 3, 4, 5, 6, 7"
)


async def asked(store: RecordStore) -> Summaries:
    return await summaries(CONFIG, StoredRecords(store), SITE, FEBRUARY)


@pytest.mark.anyio
async def test_twenty_thousand_records_give_the_messages_of_a_plain_evaluation(store: RecordStore, url: str) -> None:
    numbers = range(0, 2_000_000, 100)
    await fill(store, numbers)
    answer = await asked(store)
    plain = FakePluginContext(stored=[job(number) for number in numbers])
    assert answer == await summaries(CONFIG, plain, SITE, FEBRUARY)
    assert len(answer.rows) > 1_000
    assert seconds_of_bare_sql(url, BARE) > 0


@pytest.mark.benchmark
@pytest.mark.anyio
async def test_two_million_records_beside_bare_sql(store: RecordStore, url: str) -> None:
    await fill(store, range(2_000_000))
    with bare_connection(url) as run:
        turns = await in_turns(url, ROUNDS, partial(asked, store), partial(run, BARE))
    answer = await asked(store)
    began = time.perf_counter()
    written = [*sync_message(answer.rows), *render(answer.rows)]
    writing = time.perf_counter() - began
    jobs = sum(row.jobs for row in answer.rows)
    print(  # noqa: T201 the figures are what it is for
        f"\n{url.partition(':')[0]}: {jobs} jobs in {len(answer.rows)} rows and {len(written)} messages, "
        f"{turns} (and {writing * 1000:.0f} ms to write them)"
    )
    assert jobs > 0
