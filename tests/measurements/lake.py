"""Size of a lake of generated records, and sums over it as the daemon makes them, against an independent sum.

    python tests/measurements/lake.py [--records N] [--folder FOLDER] [--threads N ...]
        [--catalog postgresql+psycopg://…] [--spark sc://host:15002 | --trino http://user@host:8080/catalog]

A folder that has the records already is only asked: by DuckDB with each number of threads, by Spark or by Trino, which
needs a catalog in PostgreSQL.

Records are as those of twenty sites with Slurm that run for a year, whole seconds and all. They are made as columns,
one file for each month and site, as the daemon has it once small files are put together: its own writer, whose rate is
printed as well, would take an hour for thirty million. That a row is what that writer makes of its record is checked.
The sums are made of the numbers that the records were made of, in whole numbers.
"""

import argparse
import asyncio
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final, cast

from auditord.lake.duckdb_engine import DuckDb, EngineLimits
from auditord.lake.engines import Engine
from auditord.lake.opening import lake_module
from auditord.lake.positions import LakePosition
from auditord.lake.queries import LakeReader
from auditord.lake.schema import RECORD_COLUMNS, SCHEMA, records_of, rows_of
from auditord.lake.table import LakeTable
from auditord.lake.writing import ORDER, month_number, write_rows
from auditord.store.lake import LakeBatch, LakeState, Released
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    CalendarPeriod,
    CalendarUnit,
    ComponentUsage,
    MetaValue,
    Window,
)
from auditord_hookspecs.query import MetaContains, match_stopped

_numpy: Any = import_module("numpy")  # Any: of the measurement alone, as pyarrow is
_arrow: Any = import_module("pyarrow")
_compute: Any = import_module("pyarrow.compute")

SITES: Final = 20
GROUPS: Final = 10
USERS: Final = 50
MONTHS: Final = [datetime(2024 + month // 12, month % 12 + 1, 1, tzinfo=UTC) for month in range(13)]
SYNCED: Final = 20_000
"""Records of which the daemon's writer is measured."""

_CORES: Final = ComponentUsage("Cores")
_MARCH: Final = Window(datetime(2024, 3, 1, tzinfo=UTC), datetime(2024, 4, 1, tzinfo=UTC))

QUESTIONS: Final = {
    "year x site x group with scores": AggregateQuery(
        by=(CalendarPeriod(CalendarUnit.YEAR), MetaValue("site_id"), MetaValue("group_id")),
        usage=(ComponentUsage("Cores", ("HEPscore23",)),),
    ),
    "top users of a month": AggregateQuery(match_stopped(_MARCH), (MetaValue("user_id"),), (_CORES,)),
    "one user's year": AggregateQuery(
        MetaContains("user_id", "user-7-3-11"), (CalendarPeriod(CalendarUnit.MONTH),), (_CORES,)
    ),
}


class Expected:
    """The answers, added up while records are made."""

    def __init__(self) -> None:
        self.groups = Counter[tuple[int, str, str, float]]()
        self.march = Counter[str]()
        self.one = Counter[int]()
        self.one_used = Counter[int]()

    def add(self, site: int, month: int, users: Any, used: Any) -> None:  # Any: numpy's arrays
        """Count the records of a month and site; users are numbered through all groups."""
        sums = _numpy.zeros(GROUPS * USERS, dtype=_numpy.int64)
        _numpy.add.at(sums, users, used)
        for user, total in enumerate(sums.tolist()):
            group = user // USERS
            self.groups[2024, f"site-{site}", f"group-{site}-{group}", score_of(site)] += total
            if month == 2:
                self.march[f"user-{site}-{group}-{user % USERS}"] += total
        if site == 7:
            is_one = users == 3 * USERS + 11
            self.one[month + 1] += int(is_one.sum())
            self.one_used[month + 1] += int(used[is_one].sum())

    def answers(self) -> dict[str, list[tuple[object, ...]]]:
        """The rows of each question."""
        top = sorted(self.march.items(), key=lambda each: (-each[1], each[0]))[:10]
        return {
            "year x site x group with scores": sorted((*key, used) for key, used in self.groups.items()),
            "top users of a month": list(top),
            "one user's year": sorted((month, self.one[month], self.one_used[month]) for month in +self.one),
        }


def rows_of_answer(name: str, answer: Aggregates) -> list[tuple[object, ...]]:
    """The same of an answer."""
    if name == "top users of a month":
        used = [(str(group.key[0]), group.usage[0].sums.amount_runtime) for group in answer.groups]
        return list(sorted(used, key=lambda each: (-each[1], each[0]))[:10])
    if name == "one user's year":
        return sorted(
            (int(str(group.key[0])[5:7]), group.records, group.usage[0].sums.amount_runtime) for group in answer.groups
        )
    return sorted(
        (int(str(group.key[0])[:4]), *group.key[1:], float(str(value)), sums.amount_runtime)
        for group in answer.groups
        for value, sums in group.usage[0].scores["HEPscore23"].by_value.items()
    )


def score_of(site: int) -> float:
    """The benchmark of a site's cores."""
    return 10.0 + site / 8


def columns(site: int, month: int, count: int, first: int, expected: Expected) -> Any:  # Any: pyarrow's Table
    """The rows of a month and site, as collectors would have made the records."""
    random = _numpy.random.default_rng([site, month, count])
    begin, end = (int(moment.timestamp()) for moment in MONTHS[month : month + 2])
    users = random.integers(GROUPS * USERS, size=count)
    cores = random.choice(_numpy.array([1, 1, 1, 4, 8, 8, 64]), size=count)
    runtime = random.integers(60, 200_000, size=count)
    stop = _numpy.sort(random.integers(begin, end, size=count))
    cpu = (cores * runtime * random.random(count)).astype(_numpy.int64)
    expected.add(site, month, users, cores * runtime)
    groups, names = _names(f"group-{site}-", users // USERS), _names(f"user-{site}-", users // USERS, users % USERS)
    labels = [_names(f"site-{site}", count=count), groups, names]
    amounts = [cores, cores * 2048, cpu]
    found = {
        "record_id": _names("slurm-", _numpy.arange(first, first + count)),
        "start_time": (stop - runtime) * 1_000_000,
        "stop_time": stop * 1_000_000,
        "runtime": runtime,
        "site": labels[0],
        "user_group": groups,
        "user_name": names,
        "cores": amounts[0],
        "memory": amounts[1],
        "total_cpu": amounts[2],
        "meta": _meta(labels, count),
        "components": _components(amounts, score_of(site), count),
        "received_at": (stop // 300 + 1) * 300_000_000,  # the next run of a collector
        "principal": _names("task:slurm", count=count),
        "agent": _names("", count=count),
        "daemon": labels[0],
        "batch": _numpy.ones(count, dtype=_numpy.int64),
    }
    schema: Any = cast("Any", SCHEMA).as_arrow()  # Any: as pyarrow is
    made = [_arrow.array(found[each.name]) if each.name in found else _arrow.nulls(count) for each in schema]
    return _arrow.Table.from_arrays(
        [each.cast(field.type) for each, field in zip(made, schema, strict=True)], schema=schema
    )


def _names(text: str, *numbers: Any, count: int = 0) -> Any:  # Any: numpy's and pyarrow's arrays
    if not numbers:
        return _arrow.repeat(text, count)
    texts = [_arrow.array(each).cast(_arrow.string()) for each in numbers]
    return _compute.binary_join_element_wise(text, _compute.binary_join_element_wise(*texts, "-"), "")


def _interleaved(values: list[Any]) -> Any:  # Any: pyarrow's arrays
    """The first of each, then the second of each, and so on."""
    count = len(values[0])
    order = _numpy.arange(len(values) * count).reshape(len(values), count).T.ravel()
    return _arrow.concat_arrays([_arrow.array(each) for each in values]).take(_arrow.array(order))


def _offsets(step: int, count: int) -> Any:  # Any: pyarrow's Array
    return _arrow.array(_numpy.arange(0, count * step + 1, step), type=_arrow.int32())


def _meta(labels: list[Any], count: int) -> Any:  # Any: pyarrow's arrays
    keys = _interleaved([_names(key, count=count) for key in ("site_id", "group_id", "user_id")])
    lists = _arrow.ListArray.from_arrays(_offsets(1, 3 * count), _interleaved(labels))
    return _arrow.MapArray.from_arrays(_offsets(3, count), keys, lists)


def _components(amounts: list[Any], score: float, count: int) -> Any:  # Any: pyarrow's arrays
    scores = _arrow.StructArray.from_arrays(
        [_names("HEPscore23", count=count), _arrow.repeat(score, count)], ["name", "value"]
    )
    has_one = _numpy.repeat(_numpy.arange(count + 1), 3)[2:]  # the first of each three
    lists = _arrow.ListArray.from_arrays(_arrow.array(has_one, type=_arrow.int32()), scores)
    names = _interleaved([_names(name, count=count) for name in ("Cores", "Memory", "TotalCPU")])
    parts = _arrow.StructArray.from_arrays([names, _interleaved(amounts), lists], ["name", "amount", "scores"])
    return _arrow.ListArray.from_arrays(_offsets(3, count), parts)


def files(total: int, expected: Expected) -> Iterator[tuple[int, int, Any]]:  # Any: pyarrow's Table
    """The rows of each file, with month and site."""
    count = total // (SITES * 12)
    for month in range(12):
        for site in range(SITES):
            yield month, site, columns(site, month, count, month * count, expected)


def made_lake(table: LakeTable, total: int, expected: Expected) -> None:
    """Write the records in one commit; where they are there already, only add them up."""
    is_there, begun = table.facts().records > 0, perf_counter()
    made = files(total, expected)
    if is_there:
        deque(made, maxlen=0)
    else:
        write(table, made)
    facts = table.facts()
    say(f"{facts.records} records in {facts.files} files, {facts.size / facts.records:.1f} bytes per record")
    say(f"{'added up' if is_there else 'made'} in {perf_counter() - begun:.0f} s")
    with table.load() as opened:
        worked = process_time()
        found = len(list(opened.scan().plan_files()))
    say(f"{(process_time() - worked) / found * 1e3:.2f} ms of CPU time to find a file of {found}")


def write(table: LakeTable, made: Iterable[tuple[int, int, Any]]) -> None:  # Any: pyarrow's Table
    """Write files in one commit."""
    with (
        table.load() as opened,
        opened.transaction() as transaction,
        transaction.update_snapshot().merge_append() as append,
    ):
        for month, site, rows in made:
            for file in write_rows(opened, (month_number(MONTHS[month]), f"site-{site}"), rows.sort_by(ORDER)):
                append.append_data_file(file)


def check_rows(folder: Path) -> None:
    """See that rows are what the daemon's writer makes of their records, and how fast it syncs these."""
    rows = columns(0, 0, SYNCED, 0, Expected())
    copies = [copy for batch in rows.select(RECORD_COLUMNS).to_batches() for copy in records_of(batch)]
    same = rows_of(copies, rows.schema, daemon="site-0", batch=1).equals(rows)
    table, begun = lake_in(folder), perf_counter()
    table.forget("site-0", None, Released(LakeState("store")))
    table.write("site-0", LakePosition("store", 0, is_filling=True), LakeBatch(1, {}, copies))
    say(f"rows are {'as' if same else 'NOT as'} synced; {SYNCED / (perf_counter() - begun):.0f} synced per second")


def measure(table: LakeTable, engine: Engine, named: str, expected: Expected) -> None:
    """Ask as the daemon does, twice: files that were read before are in the memory of the system."""
    reader, answers = LakeReader(table, None, engine), expected.answers()
    for name, query in QUESTIONS.items():
        for time in ("first", "second"):
            begun, worked = perf_counter(), process_time()
            found = rows_of_answer(name, asyncio.run(reader.aggregate(query)))
            took, right = perf_counter() - begun, found == answers[name]
            times = f"{took:.2f} s, {process_time() - worked:.2f} s CPU time of this process"
            say(f"{name}: {times}, {named}, {time} time, {'equal' if right else 'DIFFERENT'}")
    reader.close()


def lake_in(folder: Path, catalog: str | None = None) -> LakeTable:
    """The lake of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    uri = catalog or f"sqlite:///{folder}/catalog.db"
    table = LakeTable({"type": "sql", "uri": uri, "warehouse": folder.as_uri()}, folder.as_uri())
    table.open()
    return table


def say(text: str) -> None:
    """Print a line, at once."""
    print(text, flush=True)  # noqa: T201


def main() -> None:
    """Make the lake, and ask it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--catalog", help="postgresql+psycopg://user@host/database, and not a file in the folder")
    parser.add_argument("--spark", help="the Spark Connect server to ask, and not DuckDB")
    parser.add_argument("--trino", help="the catalog of Trino to ask, and not DuckDB")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="lake"))
    table, expected = lake_in(folder, asked.catalog), Expected()
    made_lake(table, asked.records, expected)
    if asked.spark:
        measure(table, lake_module("spark_engine").Spark(asked.spark), "Spark", expected)
        return
    if asked.trino:
        measure(table, lake_module("trino_engine").Trino(asked.trino), "Trino", expected)
        return
    check_rows(Path(tempfile.mkdtemp(prefix="synced")))
    for threads in asked.threads:
        engine = DuckDb(EngineLimits(1 << 30, threads, folder / "spill"))
        measure(table, engine, f"DuckDB with {threads} threads", expected)


if __name__ == "__main__":
    main()
