"""A made-up computing site for ``auditord demo``: three months of jobs, the same for each day on which they are made.

Nothing here was measured. Two clusters and five groups with sixty users; weekends and nights are quieter, some jobs are
arrays, some fail, some use GPUs, and in the second month faster machines raise the benchmark's score per core.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from random import Random
from typing import Final

from msgspec import structs

from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.wire import encode_record

DAYS: Final = 92
LATE: Final = "aurora-demo-late"
WRONG: Final = "aurora-demo-wrong"
"""The ids of a record that comes late, and of one that was wrong."""

_SEED: Final = 2026
_USERS: Final = 60
_WEEKEND: Final = 0.3
_SATURDAY: Final = 5
_FAILING: Final = 0.06
_LONGEST: Final = 47 * 3_600
_OLD, _NEW = 13.2, 17.8
"""HEPscore23 per core, before and after the new machines."""

_WATTS_PER_CORE: Final = 5
_WATTS_PER_GPU: Final = 240


@dataclass(frozen=True, slots=True)
class _Group:
    """The habits of a group.

    Args:
        name: with a word that says that it is made up.
        share: of all users.
        cluster: where its jobs run.
        cores: sizes of its jobs, the usual ones several times.
        hours: of a usual job.
        efficiency: of its cores, about.
        gpus: for each job.
    """

    name: str
    share: int
    cluster: str
    cores: tuple[int, ...]
    hours: float
    efficiency: float
    gpus: tuple[int, ...] = (0,)


_GROUPS: Final = (
    _Group("particle-physics", 18, "aurora", (8, 8, 8, 16, 32), 9.0, 0.88),
    _Group("climate", 10, "borealis", (32, 64, 128), 6.0, 0.93),
    _Group("genomics", 14, "aurora", (1, 1, 2, 4, 8), 1.6, 0.55),
    _Group("materials", 10, "borealis", (16, 32, 64), 8.0, 0.9),
    _Group("machine-learning", 8, "borealis", (8, 16), 4.0, 0.35, (1, 1, 2, 4)),
)


def made_up_records(now: datetime) -> Iterator[Record]:
    """The jobs that ended before an instant, in about the order of their starts."""
    random, number = Random(_SEED), 1_000  # noqa: S311 no secret: the same each time
    begin = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS)
    users = _users()
    for day in range(DAYS + 1):
        morning = begin + timedelta(days=day)
        for user, group in users:
            for start, tasks in _submissions(random, morning, user):
                number += 1
                for record in _jobs(random, start, tasks, (user, group), f"{number}", fast=day > DAYS // 2):
                    if record.stop_time is not None and record.stop_time <= now:
                        yield record
    yield _single(LATE, begin + timedelta(days=40, hours=9), 16)
    yield _with_cores(_single(WRONG, now - timedelta(days=2), 8), 800)


def damaged_lines(now: datetime) -> Iterator[bytes]:
    """Lines of a file of records, of which none is one: cut off, without a start, without sense."""
    for at, hours in enumerate((30, 29, 7)):
        record = _single(f"aurora-demo-damaged-{at}", now - timedelta(hours=hours), 8)
        text = encode_record(record)
        yield text[: len(text) // 2]
        yield text.replace(b'"start_time"', b'"began"')


def corrected(record: Record) -> Record:
    """The record that was wrong, as it should have been."""
    return _with_cores(record, 8)


def _with_cores(record: Record, count: int) -> Record:
    cores, *others = record.components
    return structs.replace(record, components=(structs.replace(cores, amount=count), *others))


def _users() -> Sequence[tuple[int, _Group]]:
    groups = [group for group in _GROUPS for _ in range(group.share)]
    return list(enumerate(groups[:_USERS]))


def _submissions(random: Random, morning: datetime, user: int) -> Iterator[tuple[datetime, int]]:
    """The times at which a user submits, each with the number of tasks of the array."""
    busy = 0.55 + 0.45 * ((user * 7 + morning.toordinal() // 9) % 5) / 4  # some weeks are busier than others
    quiet = _WEEKEND if morning.weekday() >= _SATURDAY else 1.0
    for _ in range(int(random.expovariate(1.0) * 2.2 * busy * quiet + 0.35)):
        hour = min(max(random.gauss(13.5, 4.0), 0.0), 23.9)
        tasks = random.choice((5, 10, 20)) if random.random() < 0.08 else 1  # noqa: PLR2004 one in twelve is an array
        yield morning + timedelta(seconds=int(hour * 3_600)), tasks


def _jobs(
    random: Random, start: datetime, tasks: int, user: tuple[int, _Group], name: str, *, fast: bool
) -> Iterator[Record]:
    number, group = user
    cores, gpus = random.choice(group.cores), random.choice(group.gpus)
    hours = group.hours * (0.6 if fast and group.cluster == "borealis" else 1.0)
    for task in range(tasks):
        failed = random.random() < _FAILING
        seconds = int(min(random.lognormvariate(0.0, 0.7) * hours * 3_600, _LONGEST)) + 20
        seconds = random.randint(5, 600) if failed else seconds
        waited = timedelta(seconds=random.randint(0, 5_400))
        used = max(0.02, min(1.0, random.gauss(group.efficiency - 0.02 * (number % 6), 0.06)))
        record_id = f"{group.cluster}-demo-{name}" + (f"_{task}" if tasks > 1 else "")
        labels = {"state": "FAILED" if failed else "COMPLETED", "user_id": f"demo-user-{number + 1:02}"}
        waiting = Component("WaitTime", waited // timedelta(seconds=1), ())
        components = chain(_components(cores, gpus, seconds, used, _NEW if fast else _OLD), [waiting])
        yield _record(record_id, start + waited, seconds, components, (group, labels))


def _components(cores: int, gpus: int, seconds: int, used: float, score: float) -> Iterator[Component]:
    yield Component("Cores", cores, (Score("HEPscore23", score),))
    yield Component("Memory", cores * 3_000, ())
    yield Component("TotalCPU", int(cores * seconds * used), ())
    yield Component("Energy", (cores * _WATTS_PER_CORE + gpus * _WATTS_PER_GPU) * seconds, ())
    if gpus:
        yield Component("GPU", gpus, ())


def _record(
    name: str, start: datetime, seconds: int, components: Iterator[Component], of: tuple[_Group, Mapping[str, str]]
) -> Record:
    group, labels = of
    named = {"site_id": f"{group.cluster}-demo", "group_id": group.name, "origin": "made up", **labels}
    meta: dict[str, tuple[str, ...]] = {key: (value,) for key, value in named.items()}
    return Record(name, start, tuple(components), start + timedelta(seconds=seconds), meta)


def _single(name: str, start: datetime, cores: int) -> Record:
    labels = {"state": "COMPLETED", "user_id": "demo-user-01"}
    return _record(name, start, 7_200, _components(cores, 0, 7_200, 0.5, _NEW), (_GROUPS[0], labels))
