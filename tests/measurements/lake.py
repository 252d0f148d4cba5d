"""Size of a lake of generated records, and sums over it as the daemon makes them, against an independent sum.

    python tests/measurements/lake.py [RECORDS] [FOLDER]

A folder that has the records already is only asked.

Records come as from daemons of twenty sites that run for a year, each commit with 20,000 of one daemon. The sums are
made of the numbers that the records were made of, in whole numbers.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Final

from auditord.lake.asking import LakeReader
from auditord.lake.engine import DuckDb, EngineLimits
from auditord.lake.table import LakeTable, Position
from auditord.store.archived import ArchivedRecord
from auditord.store.carried import LakeBatch
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    CalendarPeriod,
    CalendarUnit,
    Component,
    ComponentUsage,
    MetaValue,
    Record,
    Score,
    Window,
)
from auditord_hookspecs.query import MetaContains, stopped_within
from auditord_hookspecs.wire import encode_record

SITES: Final = 20
BATCH: Final = 20_000
YEAR: Final = timedelta(days=365)
BEGIN: Final = datetime(2024, 1, 1, tzinfo=UTC)

_CORES: Final = ComponentUsage("Cores")
_MARCH: Final = Window(datetime(2024, 3, 1, tzinfo=UTC), datetime(2024, 4, 1, tzinfo=UTC))

QUESTIONS: Final = {
    "year x site x group with scores": AggregateQuery(
        by=(CalendarPeriod(CalendarUnit.YEAR), MetaValue("site_id"), MetaValue("group_id")),
        usage=(ComponentUsage("Cores", ("HEPscore23",)),),
    ),
    "top users of a month": AggregateQuery(stopped_within(_MARCH), (MetaValue("user_id"),), (_CORES,)),
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

    def add(self, site: int, group: int, user: int, used: int, stop: datetime) -> None:
        """Count a record."""
        self.groups[stop.year, f"site-{site}", f"group-{site}-{group}", 10.0 + site / 8] += used
        name = f"user-{site}-{group}-{user}"
        if (stop.year, stop.month) == (2024, 3):
            self.march[name] += used
        if name == "user-7-3-11":
            self.one[stop.month] += 1
            self.one_used[stop.month] += used

    def answers(self) -> dict[str, list[tuple[object, ...]]]:
        """The rows of each question."""
        top = sorted(self.march.items(), key=lambda each: (-each[1], each[0]))[:10]
        return {
            "year x site x group with scores": sorted((*key, used) for key, used in self.groups.items()),
            "top users of a month": list(top),
            "one user's year": sorted((month, self.one[month], self.one_used[month]) for month in self.one),
        }


def rows(name: str, answer: Aggregates) -> list[tuple[object, ...]]:
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


def made(site: int, number: int, total: int, random: Random, expected: Expected) -> ArchivedRecord:
    """A record as a collector would have made it."""
    group, user, cores = random.randrange(10), random.randrange(50), random.choice((1, 1, 1, 4, 8, 8, 64))
    runtime = random.randrange(60, 200_000)
    stop = BEGIN + YEAR * number / total + timedelta(seconds=random.randrange(600))
    expected.add(site, group, user, cores * runtime, stop)
    components = (
        Component("Cores", cores, (Score("HEPscore23", 10.0 + site / 8),)),
        Component("Memory", cores * 2048, ()),
        Component("TotalCPU", int(cores * runtime * random.random()), ()),
    )
    meta: dict[str, tuple[str, ...]] = {
        "site_id": (f"site-{site}",),
        "group_id": (f"group-{site}-{group}",),
        "user_id": (f"user-{site}-{group}-{user}",),
    }
    record = Record(f"slurm-{number}", stop - timedelta(seconds=runtime), components, stop, meta)
    received = stop + timedelta(seconds=300 - stop.second)
    return ArchivedRecord(record, encode_record(record).decode(), received, None, "task:slurm", "")


def batches(total: int, random: Random, expected: Expected) -> Iterator[tuple[str, LakeBatch]]:
    """The commits of all daemons."""
    each = total // SITES
    for first in range(0, each, BATCH):
        for site in range(SITES):
            numbers = range(first, min(first + BATCH, each))
            records = [made(site, number, each, random, expected) for number in numbers]
            yield f"site-{site}", LakeBatch(first // BATCH + 1, {}, records)


def made_lake(table: LakeTable, total: int, expected: Expected) -> None:
    """Carry the records; where they are there already, only add them up."""
    is_there, begun = table.facts().records == total, perf_counter()
    for daemon, batch in batches(total, Random(1), expected):  # noqa: S311 no secret
        if not is_there and batch.number == 1:
            table.forget(daemon, f"store-{daemon}")
        if not is_there:
            table.carry(daemon, Position(f"store-{daemon}", batch.number - 1), batch)
    made_in, begun = perf_counter() - begun, perf_counter()
    joined = 0 if is_there else sum(table.compact(f"site-{site}") for site in range(SITES))
    facts = table.facts()
    say(f"{facts.records} records in {facts.files} files, {facts.size / facts.records:.1f} bytes per record")
    say(f"carried in {made_in:.0f} s, {joined} files fewer after {perf_counter() - begun:.0f} s")


def measure(table: LakeTable, folder: Path, threads: int, expected: Expected) -> None:
    """Ask as the daemon does, twice: files that were read before are in the memory of the system."""
    reader = LakeReader(table, None, DuckDb(EngineLimits(1 << 30, threads, folder / "spill")))
    answers = expected.answers()
    for name, query in QUESTIONS.items():
        for time in ("first", "second"):
            begun = perf_counter()
            found = rows(name, asyncio.run(reader.aggregate(query)))
            took, right = perf_counter() - begun, found == answers[name]
            say(f"{name}: {took:.2f} s with {threads} threads, {time} time, {'equal' if right else 'DIFFERENT'}")
    reader.close()


def say(text: str) -> None:
    """Print a line, at once."""
    print(text, flush=True)  # noqa: T201


def main() -> None:
    """Make the lake, and ask it."""
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="lake"))
    folder.mkdir(parents=True, exist_ok=True)
    table = LakeTable(
        {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder.as_uri()}, folder.as_uri()
    )
    table.open()
    expected = Expected()
    made_lake(table, total, expected)
    for threads in (1, 2):
        measure(table, folder, threads, expected)


if __name__ == "__main__":
    main()
