"""Uses of the released ``python-auditor``, as a process: ``client_scenario.py KIND DUPLICATES PORT``.

KIND is ``async``, ``blocking``, ``queued`` or ``sending``; every expectation is asserted here. A process of its own,
since the asynchronous client may abort the interpreter that ends right after an answer (hence the pause at the end).
"""

import asyncio
import importlib
import inspect
import json
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

pyauditor: Any = importlib.import_module("pyauditor")  # Any: the wheel has no types

START: Final = datetime(2024, 2, 3, 4, 5, 6, 79043, tzinfo=UTC)
AWKWARD: Final = (
    "plain",
    "a/b#1.0#17",
    "ünï©ode 作业",
    "back\\slash",
    "at the end\\",
    'quote"',
    "per%cent %2F",
    "a b+c&d=e",
    "[x]",
    "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}" * 60,
)
MANY: Final = 10_000


class Client:
    """A pyauditor client of any kind, awaited where that is needed."""

    def __init__(self, client: Any) -> None:  # Any: pyauditor has no types
        self._client = client

    async def call(self, method: str, *arguments: Any) -> Any:  # Any: the same
        """The method's result, or its exception."""
        result = getattr(self._client, method)(*arguments)
        return await result if inspect.isawaitable(result) else result

    async def fails(self, beginning: str, method: str, *arguments: Any) -> None:  # Any: the same
        """Assert that the method raises what the clients' users look for."""
        try:
            await self.call(method, *arguments)
        except RuntimeError as error:
            assert str(error).startswith(beginning), error  # noqa: PT017 there is no pytest in this process
        else:
            raise AssertionError(f"{method} did not fail with {beginning}")


def record(
    record_id: str, start: datetime = START, meta: Mapping[str, Sequence[str]] | None = None
) -> Any:  # Any: pyauditor has no types
    """An open record with two components and scores."""
    found = pyauditor.Meta()
    for key, values in (meta or {}).items():
        found = found.insert(key, list(values))
    cores = pyauditor.Component("Cores", 12).with_score(pyauditor.Score("HEPSPEC", 1.2))
    cores = cores.with_score(pyauditor.Score("BENCHMARK", 3.0))
    memory = pyauditor.Component("Memory", 2**40)
    return pyauditor.Record(record_id, start).with_meta(found).with_component(cores).with_component(memory)


async def store_and_read(client: Client, prefix: str) -> None:
    """Awkward texts and every member come back as they were sent."""
    sent: dict[str, Any] = {}  # Any: pyauditor has no types
    for text in AWKWARD:
        record_id = f"{prefix}{text}"[:256]
        sent[record_id] = record(record_id, meta={"site_id": [prefix, text], "back\\": ["x\\", "é"]})
    for item in sent.values():
        await client.call("add", item.with_stop_time(START + timedelta(seconds=90, microseconds=1)))
    answer = await client.call("advanced_query", query(meta=("site_id", prefix)))
    assert {item.record_id for item in answer} == set(sent)
    for item in answer:
        assert item == sent[item.record_id].with_stop_time(START + timedelta(seconds=90, microseconds=1))
        assert (item.runtime, item.start_time) == (90, START.replace(tzinfo=None))
        assert item.meta.get("back\\") == ["x\\", "é"]
        assert [(score.name, score.value) for score in item.components[0].scores] == [
            ("HEPSPEC", 1.2),
            ("BENCHMARK", 3.0),
        ]
    for text in AWKWARD:
        [found] = await client.call(
            "advanced_query", query(meta=("site_id", text)) + f"&limit=1&{query(record_id=prefix + text)}"
        )
        assert found.record_id == f"{prefix}{text}"[:256]
    single = await client.call("get_single_record", prefix.replace("/", "%2F") + "a%2Fb%231.0%2317")
    assert single.record_id == f"{prefix}a/b#1.0#17"


def query(*, meta: tuple[str, str] | None = None, record_id: str | None = None) -> str:
    """The query of pyauditor's own builder."""
    builder = pyauditor.QueryBuilder()
    if record_id is not None:
        builder = builder.with_record_id(record_id[:256])
    if meta is not None:
        builder = builder.with_meta_query(pyauditor.MetaQuery().meta_operator(meta[0], contains(meta[1])))
    text: str = builder.build()
    return text


def contains(text: str) -> Any:  # Any: pyauditor has no types
    """The operator, which takes one text before version 0.10."""
    try:
        return pyauditor.MetaOperator().contains([text])
    except TypeError:
        return pyauditor.MetaOperator().contains(text)


async def duplicates(client: Client, prefix: str, mode: str) -> None:
    """The same run again, another run under the same id, a batch that holds one of those."""
    one = record(f"{prefix}dup").with_stop_time(START + timedelta(hours=1))
    other = record(f"{prefix}dup", START - timedelta(days=1)).with_stop_time(START)
    await client.call("add", one)
    if mode == "refuse":
        await client.fails("RECORD_EXISTS", "add", one)
        await client.fails("RECORD_EXISTS", "bulk_insert", [one, record(f"{prefix}undone")])
    else:
        await client.call("add", one)
        await client.call("bulk_insert", [one])
    await client.fails("RECORD_EXISTS", "add", other)
    await client.fails("RECORD_EXISTS", "bulk_insert", [record(f"{prefix}undone"), other])
    assert await client.call("advanced_query", query(record_id=f"{prefix}undone")) == []
    [kept] = await client.call("advanced_query", query(record_id=f"{prefix}dup"))
    assert kept == one


async def tardis(client: Client, prefix: str, mode: str) -> None:
    """A drone becomes available, comes back, goes down; a drone that nobody knows goes down."""
    meta = {"site_id": ["TESTSITE"], "group_id": ["group-1"], "user_id": ["user-1"]}
    drone = record(f"{prefix}drone", meta=meta)
    await client.call("add", drone)
    returned = record(f"{prefix}drone", START + timedelta(hours=1), meta)
    if mode == "refuse":
        await client.fails("RECORD_EXISTS", "add", returned)
    else:
        await client.call("add", returned)
    down = START + timedelta(hours=3, microseconds=999_999)
    await client.call("update", record(f"{prefix}drone", down).with_stop_time(down))
    [closed] = await client.call("advanced_query", query(record_id=f"{prefix}drone"))
    assert closed == drone.with_stop_time(down)
    assert closed.runtime == 3 * 3600
    not_found = "Reqwest Error: HTTP status client error (404 Not Found)"
    await client.fails(not_found, "update", record(f"{prefix}nobody", down).with_stop_time(down))


async def many(client: Client, prefix: str) -> None:
    """Ten thousand records in one request, and back in another."""
    records: list[Any] = []  # Any: pyauditor has no types
    for number in range(MANY):
        item = record(f"{prefix}many-{number}", START + timedelta(seconds=number), {"site_id": [f"{prefix}many"]})
        records.append(item.with_stop_time(START + timedelta(seconds=2 * number)))
    await client.call("bulk_insert", records)
    answer = await client.call("advanced_query", query(meta=("site_id", f"{prefix}many")))
    assert [item.record_id for item in answer] == [f"{prefix}many-{number}" for number in range(MANY)]  # by stop time
    assert answer == records
    assert len(await client.call("get")) >= MANY
    await ask_in_every_way(client, prefix)


async def ask_in_every_way(client: Client, prefix: str) -> None:
    """Every operator of the query builder, on the records of :func:`many`."""
    within = pyauditor.MetaQuery().meta_operator("site_id", contains(f"{prefix}many"))
    value = pyauditor.Value

    async def count(*steps: tuple[str, Any]) -> int:  # Any: pyauditor has no types
        builder = pyauditor.QueryBuilder().with_meta_query(within)
        for method, argument in steps:
            builder = getattr(builder, method)(argument)
        return len(await client.call("advanced_query", builder.build()))

    def moment(seconds: int) -> Any:  # Any: pyauditor has no types
        return value.set_datetime(START + timedelta(seconds=seconds))

    assert await count(("with_start_time", pyauditor.Operator().gt(moment(9_989)))) == 10
    assert await count(("with_start_time", pyauditor.Operator().gte(moment(9_989)).lt(moment(9_995)))) == 6
    assert await count(("with_stop_time", pyauditor.Operator().lte(moment(20)))) == 11
    assert await count(("with_start_time", pyauditor.Operator().equals(moment(7)))) == 1
    assert await count(("with_runtime", pyauditor.Operator().lt(value.set_runtime(100)))) == 100
    cores = pyauditor.ComponentQuery().component_operator("Cores", pyauditor.Operator().equals(value.set_count(12)))
    assert await count(("with_component_query", cores)) == MANY
    memory = pyauditor.ComponentQuery().component_operator("Memory", pyauditor.Operator().gt(value.set_count(255)))
    assert await count(("with_component_query", memory)) == MANY  # the second component, more than 32 bits
    assert await count(("limit", 4)) == 4
    builder = pyauditor.QueryBuilder().with_meta_query(within).sort_by(pyauditor.SortBy().descending("start_time"))
    [last] = await client.call("advanced_query", builder.limit(1).build())
    assert last.record_id == f"{prefix}many-{MANY - 1}"
    await client.fails("Reqwest Error: HTTP status client error (400", "advanced_query", "state=started")
    await client.fails("Reqwest Error: HTTP status client error (404", "get_single_record", f"{prefix}nothing")


async def queued(builder: Any, folder: Path) -> None:  # Any: pyauditor has no types
    """The queued client delivers what it was given, one record that is refused notwithstanding."""
    client = await builder.send_interval(1).database_path(str(folder / "queue.db")).build_queued()
    await client.add(record("queued-1"))
    await client.bulk_insert([record("queued-1", START - timedelta(days=1)), record("queued-2"), record("queued-3")])
    await client.update(record("queued-2").with_stop_time(START + timedelta(hours=1)))
    async with asyncio.timeout(30):
        while not await client.advanced_query("record_id=queued-2&runtime[equals]=3600"):  # noqa: ASYNC110 polls a peer
            await asyncio.sleep(0.1)
    assert {item.record_id for item in await client.get()} == {"queued-1", "queued-2", "queued-3"}
    await client.stop()


async def sending(client: Any, port: int) -> None:  # Any: pyauditor has no types
    """Send as collectors do. Versions before 0.9 can do no more: they cannot decode a list of records."""
    meta = {"site_id": ["TESTSITE"], "user_id": ["ünï©ode"]}
    await client.add(record("one", meta=meta))
    await client.bulk_insert([record("two"), record("three", meta=meta)])
    await client.update(record("one").with_stop_time(START + timedelta(hours=1)))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/record/one") as answer:  # noqa: ASYNC210 nothing else runs
        found = json.load(answer)
    assert (found["meta"], found["runtime"]) == (meta, 3600)
    assert found["components"][0]["scores"] == [{"name": "HEPSPEC", "value": 1.2}, {"name": "BENCHMARK", "value": 3.0}]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/records") as answer:  # noqa: ASYNC210 the same
        assert answer.read().count(b'"record_id"') == 3


async def main(kind: str, mode: str, port: int, folder: Path) -> None:
    """All of it."""
    builder = pyauditor.AuditorClientBuilder().address("127.0.0.1", port).timeout(60)
    if kind == "queued":
        await queued(builder, folder)
        return
    if kind == "sending":
        await sending(builder.build(), port)
        return
    client = Client(builder.build() if kind == "async" else builder.build_blocking())
    assert await client.call("health_check")
    await store_and_read(client, f"{kind}/")
    await duplicates(client, kind, mode)
    await tardis(client, kind, mode)
    await many(client, kind)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
    time.sleep(0.3)
