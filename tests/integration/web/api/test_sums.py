"""Sums under /api/v1: equal to a plain evaluation, exact, and refused with words."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zoneinfo import available_timezones

import pytest

from auditord.duplicates import Duplicates
from auditord.errors import ConfigurationError
from auditord.store import Provenance
from auditord.store.lake import LakeMiscounted
from auditord.web.api.sums import read_sums_query
from auditord.web.limits import MAX_CONDITIONS, MOST_FILTERED
from auditord_hookspecs import AggregateQuery, Aggregates, CalendarUnit, Component, Record, RecordQuery, Score
from auditord_hookspecs.aggregates import LakeSnapshot
from tests.api_server import AWAY, NOW, Api, api_server
from tests.summed_records import aggregate_records

pytestmark = pytest.mark.anyio

EPOCH = datetime(2026, 1, 31, 22, tzinfo=UTC)
HUGE = 2**62


def job(number: int, hours: int | None, cores: int, score: float | None, **meta: str) -> Record:
    scores = () if score is None else (Score("HEPscore23", score),)
    stop = None if hours is None else EPOCH + timedelta(hours=hours)
    lists: dict[str, tuple[str, ...]] = {key: (value, "second") for key, value in meta.items()}
    components = (Component("Cores", cores, scores), Component("Memory", HUGE, ()))
    return Record(f"job-{number}", EPOCH, components, stop, lists or None)


RECORDS = [
    job(1, 1, 4, 12.5, site_id="A"),
    job(2, 5, 8, 12.5, site_id="A"),
    job(3, 5, 2, 0.1, site="B"),
    job(4, None, 1, None, site_id="A"),
    job(5, 3, 7, None),
    job(6, -1, 7, 1.0, site_id="backwards"),
]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with api_server(tmp_path) as server:
        await server.store.add_all(RECORDS, Provenance(NOW), Duplicates.SAME_RUN, atomic=True)
        yield server


QUERIES = [
    "",
    "by=meta:site_id|site",
    "by=meta:site_id&by=stop:month&usage=Cores:HEPscore23&usage=Memory",
    "by[]=stop:day&by[]=start:year&by[]=amount:Cores&by[]=has:Memory",
    "by[]=exceeds:Memory:0.25:Cores&by[]=exceeds:Cores:1",
    "by=stop:week&by=start:quarter",
    "by=stop:month:Europe/Berlin&by=start:day:America%2FSt_Johns",
    "by=score:Cores:HEPscore23&usage=Cores:HEPscore23|HS06",
    "usage=Memory&from=2026-01-31T23:00:00Z&to=2026-02-01T01:30:00Z",
    "usage=Cores&as_of=2026-02-02T00:00:00Z&by=meta:site_id",
    "meta[site_id][any][]=A&open=false&usage=Cores",
    "usage=Cores&usage=Memory&usage=Cores:HS06|HEPscore23|HS06",
    "usage=Memory&from=2026-01-31T23:00:00Z",
    "usage=Memory&to=2026-01-31T23:30:00Z",
    "usage=Memory&from=2026-02-01T00:00:00Z&to=2026-01-31T00:00:00Z",
    "runtime[gt]=999999",
]


def plainly(query: str) -> Any:  # Any: JSON
    asked = read_sums_query(query)
    found = aggregate_records(RECORDS, asked.query)
    return {
        "ticks_per_second": found.ticks_per_second,
        "groups": [
            {
                "key": [str(each) if isinstance(each, Decimal) else each for each in group.key],
                "records": group.records,
                "runtime": group.runtime,
                "usage": [(each.sums.amount, each.sums.amount_runtime) for each in group.usage],
                "scores": [
                    {
                        name: (sums.amount, sums.amount_runtime, sums.unscored.amount)
                        for name, sums in each.scores.items()
                    }
                    for each in group.usage
                ],
            }
            for group in found.groups
        ],
    }


def answered(answer: Any) -> Any:  # Any: JSON
    return {
        "ticks_per_second": answer["ticks_per_second"],
        "groups": [
            {
                "key": list(group["key"].values()),
                "records": group["records"],
                "runtime": group["runtime"],
                "usage": [(each["amount"], each["amount_runtime"]) for each in group["usage"].values()],
                "scores": [
                    {
                        name: (Decimal(sums["amount"]), Decimal(sums["amount_runtime"]), sums["unscored"]["amount"])
                        for name, sums in each["scores"].items()
                    }
                    for each in group["usage"].values()
                ],
            }
            for group in answer["groups"]
        ],
    }


@pytest.mark.parametrize("query", QUERIES)
async def test_sums_equal_a_plain_evaluation(api: Api, query: str) -> None:
    answer = await api.get(f"/api/v1/aggregates?{query}")
    assert answer.status == 200
    expected = plainly(query)
    for group in expected["groups"]:
        group["key"] = [each if isinstance(each, str | int | None) else each.isoformat() for each in group["key"]]
    assert answered(answer.json) == expected


async def test_the_answer_in_full(api: Api) -> None:
    answer = await api.get("/api/v1/aggregates?by=meta:site_id&by=stop:month&usage=Cores:HEPscore23&record_id=job-2")
    assert answer.json == {
        "snapshot": None,
        "ticks_per_second": 1,
        "groups": [
            {
                "key": {"meta:site_id": "A", "stop:month": "2026-02-01"},
                "records": 1,
                "runtime": 18_000,
                "first_stop": "2026-02-01T03:00:00Z",
                "last_stop": "2026-02-01T03:00:00Z",
                "usage": {
                    "Cores": {
                        "amount": 8,
                        "amount_runtime": 144_000,
                        "scores": {
                            "HEPscore23": {
                                "amount": "100",
                                "amount_runtime": "1800000",
                                "unscored": {"amount": 0, "amount_runtime": 0},
                                "by_value": [{"value": "12.5", "amount": 8, "amount_runtime": 144_000}],
                            }
                        },
                        "known": True,
                    }
                },
            }
        ],
    }


async def test_no_digit_of_a_huge_sum_is_lost(api: Api) -> None:
    answer = await api.get("/api/v1/aggregates?usage=Memory")
    runtimes = [3_600, 18_000, 18_000, 10_800]
    assert answer.json["groups"][0]["usage"]["Memory"]["amount_runtime"] == HUGE * sum(runtimes)
    assert str(HUGE * sum(runtimes)).encode() in answer.body


async def test_names_with_colons(tmp_path: Path) -> None:
    async with api_server(tmp_path) as api:
        meta: dict[str, tuple[str, ...]] = {"a:b|c%": ("x",)}
        odd = Record("odd", EPOCH, (Component("c:d", 3, ()),), EPOCH + timedelta(seconds=1), meta)
        await api.store.add(odd, Provenance(NOW), Duplicates.SAME_RUN)
        by, usage = (quote(quote(text, safe=""), safe="") for text in ("a:b|c%", "c:d"))
        (group,) = (await api.get(f"/api/v1/aggregates?by=meta:{by}&usage={usage}")).json["groups"]
        assert (list(group["key"].values()), group["usage"]["c:d"]["amount"]) == (["x"], 3)


KEYS = "&".join("by=meta:" + "|".join(f"k{number}_{key}" for key in range(10)) for number in range(20))
ZONES = [each for each in sorted(available_timezones()) if each.startswith("America/")]


def components(most: int) -> str:
    return "&".join(f"usage=c{number}:s{number}" for number in range(most))


def zones(most: int) -> str:
    periods = zip(cycle(CalendarUnit), ZONES[:most], strict=False)
    return "&".join(f"by=stop:{unit.value}:{zone}" for unit, zone in periods)


COMPONENTS = components(20)
PERIODS = zones(20)


def filters(most: int) -> str:
    return "&".join(f"meta[k{number}][dnc][]=v" for number in range(most))


MANY_FILTERS = filters(MOST_FILTERED // 21)
OPEN = "as_of=2026-02-02T00:00:00Z"
LARGEST = {
    "keys and components": f"{KEYS}&{COMPONENTS}",
    "time zones": PERIODS,
    "time zones and components": f"{zones(2)}&{components(14)}",
    "time zones, components and filters": f"{zones(5)}&{components(5)}&{filters(MAX_CONDITIONS)}",
    "keys, components and filters": f"{KEYS}&{COMPONENTS}&{MANY_FILTERS}",
    "keys, components, filters and open records": f"{KEYS}&{COMPONENTS}&{filters(MOST_FILTERED // 42)}&{OPEN}",
    "keys, filters and open records": f"{KEYS}&{filters(MAX_CONDITIONS)}&{OPEN}",
}


@pytest.mark.parametrize(
    ("query", "parameter", "words"),
    [
        ("group=site", "group", "unknown field"),
        ("by=site_id", "by", "meta:key"),
        ("by=meta:", "by", "cannot group by"),
        ("by=meta:a||b", "by", "empty"),
        ("by=meta:%25ff", "by", "UTF-8"),
        ("by=stop:decade", "by", "day, week, month, quarter, year"),
        ("by=score:Cores", "by", "score:component:score"),
        ("by=exceeds:TotalCPU", "by", "not a component and a factor"),
        ("by=exceeds:TotalCPU:1000000000:Cores", "by", "a factor must be"),
        ("by=exceeds:TotalCPU:NaN", "by", "not a component and a factor"),
        ("by=meta:a&by=meta:a", "by", "more than once"),
        ("&".join(f"by=meta:{number}" for number in range(21)), "by", "at most 20"),
        ("by=meta:" + "|".join(f"k{number}" for number in range(11)), "by", "11 keys in one dimension; at most 10"),
        ("by=meta:" + "|".join(f"k{number}" for number in range(1_000)), "by", "at most 10"),
        (
            "usage=Cores:" + "|".join(f"s{number}" for number in range(21)),
            "usage",
            "21 scores in one query; at most 20",
        ),
        ("&".join(f"usage=c{at}:a|b" for at in range(11)), "usage", "22 scores in one query; at most 20"),
        (f"{zones(16)}&usage=Cores", "usage", "16 periods with a time zone and 1 components"),
        (f"{zones(1)}&{components(15)}&{OPEN}", "usage", "1 periods with a time zone and 15 components"),
        (f"{COMPONENTS}&{filters(96)}", "usage", "96 filters and 20 components"),
        (f"{COMPONENTS}&{filters(48)}&{OPEN}", "usage", "48 filters and 20 components"),
        ("usage=Cores&usage=Cores", "usage", "more than once"),
        ("by=0", "by", "cannot group by"),
        ("from=2026-01-01T00:00:00Z&to=", "to", "has no value"),
        ("as_of=now", "as_of", "time with zone"),
        ("limit=5", "limit", "unknown field"),
        ("by[0]=meta:a", "by", "once for each value"),
    ],
)
async def test_a_wrong_parameter_is_named(api: Api, query: str, parameter: str, words: str) -> None:
    answer = await api.get(f"/api/v1/aggregates?{query}")
    assert (answer.status, answer.problem["parameter"]) == (400, parameter)
    assert words in answer.problem["detail"]


@pytest.mark.parametrize("name", LARGEST)
async def test_everything_that_can_be_named_at_once_is_answered(api: Api, name: str) -> None:
    answer = await api.get(f"/api/v1/aggregates?{LARGEST[name]}")
    assert answer.status == 200, answer.body


async def test_a_window_without_an_end_has_the_last_day_of_the_calendar(api: Api) -> None:
    last = datetime(9999, 12, 31, 23, tzinfo=UTC)
    record = Record("last", last - timedelta(hours=1), (), last + timedelta(minutes=59, seconds=59))
    await api.store.add(record, Provenance(NOW), Duplicates.SAME_RUN)
    for begin, hours in (("9999-12-31T22:30:00Z", 1.5), ("9999-01-01T00:00:00Z", 2)):
        (group,) = (await api.get(f"/api/v1/aggregates?from={begin}")).json["groups"]
        assert (group["records"], group["runtime"]) == (1, (hours * 3_600 - 1) * 1_000_000)


@pytest.mark.parametrize("to", ["2026-01-31T23:00:00Z", "2026-01-31T22:30:00Z"])
async def test_a_window_that_does_not_end_after_it_begins_is_empty(api: Api, to: str) -> None:
    answer = await api.get(f"/api/v1/aggregates?from=2026-01-31T23:00:00Z&to={to}&as_of=2026-02-02T00:00:00Z")
    assert answer.json["groups"] == []


async def test_a_store_that_is_away(api: Api) -> None:
    api.faults.store = AWAY
    assert (await api.get("/api/v1/aggregates")).problem["status"] == 503


@dataclass
class MadeLake:
    """A lake whose answer is made beforehand."""

    answer: Aggregates | Exception
    is_of_many: bool = False

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        del query
        if isinstance(self.answer, Exception):
            raise self.answer
        yield _no_pages()

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        del query
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def _no_pages() -> AsyncIterator[Sequence[bytes]]:
    pages: Sequence[Sequence[bytes]] = ()
    for page in pages:
        yield page


async def test_the_answer_names_the_snapshot_of_the_lake(tmp_path: Path) -> None:
    found = Aggregates((), 1, LakeSnapshot(2**62 + 1, NOW))
    async with api_server(tmp_path, lake=MadeLake(found)) as api:
        of_lake, of_store = [
            (await api.get(f"/api/v1/aggregates?source={source}")).json["snapshot"] for source in ("lake", "store")
        ]
    assert of_lake == {"id": "4611686018427387905", "committed_at": "2026-11-20T12:00:00Z", "complete": True}
    assert of_store is None


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (AWAY, "the lake is unavailable"),
        (LakeMiscounted("rows in /srv"), LakeMiscounted.summary),
        (ConfigurationError("pip install it"), "pip install it"),
    ],
)
async def test_a_lake_that_cannot_be_asked_is_a_503(tmp_path: Path, fault: Exception, words: str) -> None:
    async with api_server(tmp_path, lake=MadeLake(fault)) as api:
        for what in ("aggregates", "records"):
            answer = await api.get(f"/api/v1/{what}?source=lake")
            assert (answer.status, answer.problem["detail"]) == (503, words)
            assert b"/srv" not in answer.body


async def test_pages_that_could_lose_a_record_are_refused(tmp_path: Path) -> None:
    async with api_server(tmp_path, lake=MadeLake(Aggregates((), 1), is_of_many=True)) as api:
        refused = await api.get("/api/v1/records?source=lake")
        assert (refused.status, refused.problem["parameter"]) == (400, "format")
        assert (await api.get("/api/v1/records?source=lake&format=ndjson")).status == 200


async def test_no_lake_and_no_such_source_are_refused(api: Api) -> None:
    for source, words in (("lake", "this daemon has no lake"), ("pond", "unknown source 'pond'")):
        for what in ("aggregates", "records"):
            problem = (await api.get(f"/api/v1/{what}?source={source}")).problem
            assert (problem["status"], problem["parameter"]) == (400, "source")
            assert words in problem["detail"]
