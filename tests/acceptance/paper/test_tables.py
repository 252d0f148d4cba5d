"""The AUDITOR paper's tables: providers behind one compute element, and a change of client in the middle of a month.

Ads of HTCondor become records by the collector's own rules, the store sums them up, and APEL's messages are made of the
sums; what comes out is compared with what the generator knows. A hundredth by default; in full size, for both stores:
``pytest -m benchmark -s tests/acceptance/paper``.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import date, timedelta
from fractions import Fraction
from itertools import islice, product
from pathlib import Path
from typing import Final

import pytest

from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.opening import open_store
from auditord.store.reading import StoredRecords
from auditord.store.store import RecordStore
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.messages import SummaryRow, render, sync_message
from auditord_builtin.apel.summaries import summaries
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import AggregateQuery, CalendarPeriod, CalendarUnit, ComponentUsage, MetaValue
from auditord_hookspecs.months import Month
from tests.paper_jobs import PER_MONTH, SITES, Job, jobs, month, table_1, table_2

pytestmark = pytest.mark.anyio

BATCH: Final = 5_000
NOW: Final = month(2025, 1)
OLD_CLIENT: Final = Provenance(NOW, None, "auditor-client/0.11.2")
COLLECTOR: Final = Provenance(NOW, "task:htcondor")
APEL: Final = ApelConfig.model_validate(
    {
        "site": {"sites_to_report": {site: [site] for site in SITES}},
        "messaging": {"client_cert": "/c", "client_key": "/k"},
        "benchmarks": [{"type": "HEPscore23", "score": "HEPscore23"}],
        "summary_fields": {
            "mandatory": {
                "VO": {"type": "MetaField", "name": "group_id"},
                "SubmitHost": {"type": "MetaField", "name": "submithost"},
            }
        },
    }
)
FULL: Final = [
    pytest.param("sqlite", 1, id="sqlite-full", marks=pytest.mark.benchmark),
    pytest.param("postgresql", 1, id="postgresql-full", marks=pytest.mark.benchmark),
]


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "sqlite":
        return f"sqlite://{tmp_path / 'records.db'}"
    made: str = request.getfixturevalue("postgres_url")
    return made


@pytest.fixture
async def store(url: str) -> AsyncIterator[RecordStore]:
    async with open_store(url, counted_keys=()) as opened:
        yield opened


async def take_in(store: RecordStore, all_jobs: Iterable[Job], provenance: Provenance) -> Counter[Verdict]:
    verdicts: Counter[Verdict] = Counter()
    rest = iter(all_jobs)
    while records := [job.record() for job in islice(rest, BATCH)]:
        verdicts.update(await store.add_all(records, provenance, Duplicates.SAME_RUN, atomic=True))
    return verdicts


async def reported(store: RecordStore, months: Iterable[Month]) -> Sequence[SummaryRow]:
    """The rows of each site's own messages, which APEL would accept."""
    rows: list[SummaryRow] = []
    for site, each in product(SITES, months):
        found = await summaries(APEL, StoredRecords(store), site, each)
        assert (found.problems, found.held) == ((), ())
        for message in [*render(found.rows), *sync_message(found.rows)]:
            assert message.site == site
            assert not validate(message.text)
        rows += found.rows
    return rows


@pytest.mark.parametrize(("kind", "part"), [("postgresql", 100), *FULL])
async def test_table_1_each_provider_is_a_site_of_its_own(store: RecordStore, part: int) -> None:
    """HEPscore23 hours by site, submit host and year, of one element that serves three providers for two years."""
    count = PER_MONTH // part
    spacing = (month(2025, 1) - month(2023, 1)) / count
    await take_in(store, jobs(range(count), month(2023, 1), spacing), COLLECTOR)
    truth = table_1(jobs(range(count), month(2023, 1), spacing))
    assert len(truth) == 6
    query = AggregateQuery(
        by=(MetaValue("site_id", "site"), MetaValue("submithost"), CalendarPeriod(CalendarUnit.YEAR)),
        usage=(ComponentUsage("Cores", ("HEPscore23",)),),
    )
    answer = await store.aggregate(query)
    table = {
        (group.key[0], group.key[1], year_of(group.key[2])): Fraction(
            group.usage[0].scores["HEPscore23"].amount_runtime
        )
        / 3_600
        for group in answer.groups
    }
    assert table == truth
    months = [Month(year, number) for year in (2023, 2024) for number in range(1, 13)]
    rows = await reported(store, months)
    for key, hours in truth.items():
        mine = [row for row in rows if (row.site, row.submit_host, row.month.year) == key]
        sums = sum(Fraction(row.normalised_wall * row.processors, 3_600) for row in mine)
        rounding = sum(Fraction(row.processors, 2 * 3_600) for row in mine)  # half a second in each row
        assert abs(sums - hours) <= rounding


def year_of(day: object) -> int:
    assert isinstance(day, date)
    return day.year


@pytest.mark.parametrize(("kind", "part"), [("sqlite", 100), *FULL])
async def test_table_2_a_change_of_client_counts_every_job_once(store: RecordStore, part: int) -> None:
    """Jobs by submit host and month, where another client brought the jobs up to the middle of the second month.

    The new one looks back three days, so both bring the jobs of these.
    """
    count = 2 * PER_MONTH // part
    begin, change = month(2024, 5), month(2024, 6) + timedelta(days=14)
    spacing = (month(2024, 7) - begin) / count
    cut, again = (change - begin) // spacing, (change - timedelta(days=3) - begin) // spacing
    before = await take_in(store, jobs(range(cut), begin, spacing, hosts=5), OLD_CLIENT)
    after = await take_in(store, jobs(range(again, count), begin, spacing, hosts=5), COLLECTOR)
    assert before == {Verdict.ADDED: cut}
    assert after == {Verdict.ADDED: count - cut, Verdict.SAME: cut - again}
    truth = table_2(jobs(range(count), begin, spacing, hosts=5))
    assert len(truth) == 10
    rows = await reported(store, [Month(2024, 5), Month(2024, 6)])
    sums: Counter[tuple[str, str]] = Counter()
    for row in rows:
        sums[row.submit_host, f"{row.month.year}-{row.month.month:02}"] += row.jobs
    assert sums == truth
    assert synchronised(rows) == truth


def synchronised(rows: Sequence[SummaryRow]) -> Counter[tuple[str, str]]:
    """The sync messages, by which APEL tells if it has all."""
    found: Counter[tuple[str, str]] = Counter()
    for message in sync_message(rows):
        for block in message.text.split("%%")[:-1]:
            fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            month = f"{fields['Year']}-{int(fields['Month']):02}"
            found[fields["SubmitHost"], month] += int(fields["NumberOfJobs"])
    return found
