"""A model of store and spool: all sequences of steps and faults, until the search finds no new state.

It drives the real :class:`Pairing`, :class:`StoreSink`, :class:`Spool` (on SQLite in memory) and :func:`recognise`. A
write may succeed, fail, lose its answer, or fail although a crash leaves it on the disk. A kill or power cut may follow
each failure, so the sequences include one between any two steps. The model asks in every state: Would a start refuse
the pair, though nobody exchanged a part? Is a record lost? Would a start accept an older copy of the store that lacks
records, or one of the spool from two generations ago?
"""

import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, TypeVarTuple, Unpack, cast, get_args

import pytest

from auditord.database import Database
from auditord.database.migrations import load_migrations, migrate
from auditord.errors import StoreMismatch, StoreUnavailable
from auditord.ingest import Pairing, StoreSink, recognise
from auditord.spool import Generation, Spool
from auditord.spool.spool import MIGRATIONS
from auditord.store import Verdict
from auditord.store.store import RecordStore
from auditord.store.work import Statement
from auditord.testing import make_record
from auditord_hookspecs import Insert, Record

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800)]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Fault: TypeAlias = Literal["", "fails", "loses its answer", "fails, but a crash leaves it on the disk"]
Part: TypeAlias = Literal["store", "spool"]

LOWEST: Final = -3
"""A copy so many generations older than the spool is like an older one, since it is refused for ever."""
STATE: Final = Path("/state")
NOW: Final = datetime(2026, 11, 27, tzinfo=UTC)
SPOOL_ID: Final = "spool"
JOBS: Final = {name: Insert(make_record(name)) for name in ("job-1", "job-2")}
ENTRY_IDS: Final = {name: number for number, name in enumerate(JOBS, 1)}


@dataclass(frozen=True)
class Scenario:
    """The part that is copied, what may reach the store, and how a write may fail."""

    copied: Part
    jobs: int
    posts: bool
    fault: Fault


CASES: Final[Sequence[tuple[Part, int, bool]]] = [("store", 2, False), ("store", 1, True), ("spool", 1, False)]
SCENARIOS: Final = [
    pytest.param(Scenario(*case, fault), marks=[] if case[0] == "spool" else pytest.mark.slow)
    for case in CASES
    for fault in get_args(Fault)[2:]
]


class SpoolFile(NamedTuple):
    """The generation and the queue in ``spool.db``."""

    number: int
    queue: frozenset[str]


class StoredRecords(NamedTuple):
    """The generation and the records in the record store."""

    number: int
    records: frozenset[str]


class Process(NamedTuple):
    """The memory of a running daemon."""

    spool: Sequence[tuple[str, Generation]]
    pairing: Sequence[tuple[str, int]]
    sent: frozenset[str]  # delivered and not settled


class Copy(NamedTuple):
    """A copy of one part, and the number of generations that the spool has written since (2: two or more)."""

    part: SpoolFile | StoredRecords
    exchanges: int = 0


class World(NamedTuple):
    """A state between two actions; ``left`` is what a crash may leave of a write that has failed."""

    spool: SpoolFile = SpoolFile(0, frozenset())
    spool_left: SpoolFile | None = None
    store: StoredRecords = StoredRecords(0, frozenset())
    store_left: StoredRecords | None = None
    writes: int = 0
    process: Process | None = None
    collected: frozenset[str] = frozenset()
    acknowledged: frozenset[str] = frozenset()  # records that clients wrote past the spool
    noticed: frozenset[str] = frozenset()  # those of them that every newer copy must have
    copy: Copy | None = None

    @property
    def spools(self) -> Sequence[SpoolFile]:
        """Return the states of the spool that a crash may leave."""
        return [each for each in (self.spool, self.spool_left) if each is not None]

    @property
    def stores(self) -> Sequence[StoredRecords]:
        """Return the states of the store that a crash may leave."""
        return [each for each in (self.store, self.store_left) if each is not None]

    def key(self) -> object:
        """Return the state, with generations relative to the spool's: their height makes no difference."""
        base = self.spool.number
        process: object = self.process
        if self.process is not None:
            process = (
                tuple((name, known.number - base) for name, known in self.process.spool),
                tuple((name, self.writes - count > 0) for name, count in self.process.pairing),
                self.process.sent,
            )
        parts = (self.spool, self.spool_left, self.store, self.store_left, self.copy and self.copy.part)
        numbered = tuple(part and (max(part.number - base, LOWEST), part[1]) for part in parts)
        names = (self.collected, self.acknowledged, self.noticed)
        return numbered, process, names, self.copy and self.copy.exchanges


@dataclass
class Choices:
    """The faults of one run: those of a script, and none after its end."""

    scenario: Scenario
    script: list[int] = field(default_factory=list[int])
    calm: bool = False
    asked: list[tuple[str, Sequence[Any]]] = field(default_factory=list[tuple[str, Sequence[Any]]])

    def pick(self, what: str, options: Sequence[T]) -> T:
        if len(self.asked) == len(self.script):
            self.script.append(0)
        self.asked.append((what, options))
        return options[self.script[len(self.asked) - 1]]

    def fault(self, what: str) -> Fault:
        """Choose how a write fails; "": not at all."""
        if self.calm:
            return ""
        return self.pick(what, ("", "fails", self.scenario.fault))

    def following(self) -> "Choices | None":
        """Return the choices of the next run; None after the last one."""
        script = self.script[: len(self.asked)]
        while script and script[-1] + 1 == len(self.asked[len(script) - 1][1]):
            script.pop()
        return Choices(self.scenario, [*script[:-1], script[-1] + 1]) if script else None

    def __str__(self) -> str:
        taken = [(what, options[place]) for (what, options), place in zip(self.asked, self.script, strict=True)]
        return "; ".join(f"{what} {fault}" for what, fault in taken if fault)


class StandInDatabase:
    """Stands in for the :class:`Database` of a spool: its writes are done by SQLite, and fail as chosen."""

    def __init__(
        self, connection: sqlite3.Connection, file: SpoolFile, left: SpoolFile | None, choices: Choices
    ) -> None:
        self._connection = connection
        self._choices = choices
        self.file = file
        self.left = left

    async def write(self, work: Callable[[sqlite3.Connection, Unpack[Ts]], T], *args: *Ts) -> T:
        fault = self._choices.fault("write of the spool")
        if fault == "fails":
            raise StoreUnavailable("full")
        self._load()
        result, after = work(self._connection, *args), self._saved()
        if fault == "fails, but a crash leaves it on the disk":
            self.left = after
            raise StoreUnavailable("input/output error")
        self.file, self.left = after, None
        if fault:
            raise StoreUnavailable("timeout")
        return result

    def _load(self) -> None:
        self._connection.execute("DELETE FROM queue")
        self._connection.executemany(
            "INSERT INTO queue (entry_id, sender, record_id, operation, body, received_at, due_at) "
            "VALUES (?, 'local', ?, 'insert', '', 0, 0)",
            [(ENTRY_IDS[name], name) for name in self.file.queue],
        )
        self._connection.execute("UPDATE generation SET number = ?", (self.file.number,))

    def _saved(self) -> SpoolFile:
        ((number,),) = self._connection.execute("SELECT number FROM generation")
        return SpoolFile(number, frozenset(name for (name,) in self._connection.execute("SELECT record_id FROM queue")))


class StandInStore:
    """Stands in for a record store."""

    def __init__(self, world: World, choices: Choices) -> None:
        self._choices = choices
        self.now = world.store
        self.left = world.store_left
        self.writes = world.writes
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def generation(self, spool_id: str) -> int:
        assert spool_id == SPOOL_ID
        if self._choices.pick("look at the store", ("", "fails")):
            raise StoreUnavailable("away")
        return self.now.number

    async def starts(self, record_ids: Sequence[str], spool_id: str) -> tuple[Mapping[str, datetime], int]:
        assert not record_ids
        return {}, await self.generation(spool_id)

    async def advance(self, spool_id: str, generation: int, *, adopt: bool = False) -> int:
        assert spool_id == SPOOL_ID
        before = self.now.number
        number = generation if adopt or before in {generation - 1, generation} else before
        self._write("generation of the store", self.now._replace(number=number))
        return before

    async def add(self, record: Record, *_: object) -> Verdict:
        if self.meanwhile is not None and self._choices.pick("the heart", ("", "beats meanwhile")):
            self._choices.calm = True
            await self.meanwhile()
            self._choices.calm = False
        self._write("record", self.now._replace(records=self.now.records | {record.record_id}))
        self.writes += 1
        return Verdict.ADDED

    def _write(self, what: str, after: StoredRecords) -> None:
        fault = self._choices.fault(what)
        if fault == "fails":
            raise StoreUnavailable("away")
        if fault == "fails, but a crash leaves it on the disk":
            self.left = after
            raise StoreUnavailable("input/output error")
        self.now, self.left = after, None
        if fault:
            raise StoreUnavailable("timeout")


class Run:
    """One action on a world, with chosen faults."""

    def __init__(self, world: World, connection: sqlite3.Connection, choices: Choices) -> None:
        self.world = world
        self.choices = choices
        self.store = StandInStore(world, choices)
        self.database = StandInDatabase(connection, world.spool, world.spool_left, choices)
        generation = Generation(SPOOL_ID, world.spool.number)
        self.spool = Spool(cast("Database", self.database), lambda: NOW, generation, occupied=["local"])
        self.pairing = Pairing(cast("RecordStore", self.store), self.spool)
        self.sent = frozenset[str]()
        if world.process is not None:
            vars(self.spool).update(world.process.spool)
            vars(self.pairing).update(world.process.pairing)
            self.sent = world.process.sent

    def after(self, **changes: Any) -> World:
        """Return the world after the action."""
        kept = [(name, value) for name, value in vars(self.spool).items() if isinstance(value, Generation)]
        noted = [(name, value) for name, value in vars(self.pairing).items() if isinstance(value, int)]
        copy = self.world.copy
        if copy is not None and self.database.file.number > self.world.spool.number:
            copy = copy._replace(exchanges=min(copy.exchanges + 1, 2))
        return self.world._replace(
            spool=self.database.file,
            spool_left=self.database.left,
            store=self.store.now,
            store_left=self.store.left,
            writes=self.store.writes,
            process=Process(kept, noted, self.sent),
            copy=copy,
            **changes,
        )


def crashed(run: Run, world: World) -> World:
    """The world once its process has ended, with what a crash leaves of writes that have failed."""
    spool = run.choices.pick("the crash leaves", world.spools)
    store = run.choices.pick("the crash leaves", world.stores)
    return world._replace(process=None, spool=spool, store=store, spool_left=None, store_left=None)


async def start(run: Run) -> World:
    return run.after()


async def pair(run: Run) -> World:
    """As each start and stop does, and a start again and again until it has succeeded."""
    with suppress(StoreUnavailable):
        await run.pairing.advance_both()
    return run.after()


async def end(run: Run) -> World:
    """Kill the daemon, also at the end of a stop."""
    return crashed(run, run.world)


async def adopt(run: Run) -> World:
    with suppress(StoreUnavailable):
        await run.pairing.adopt()
    return crashed(run, run.after())


async def beat(run: Run) -> World:
    noticed = run.world.noticed
    with suppress(StoreUnavailable):
        await run.pairing.follow_writes()
        noticed |= run.world.acknowledged
    return run.after(noticed=noticed)


async def post(run: Run) -> World:
    """A client's record goes past the spool."""
    acknowledged = run.world.acknowledged
    with suppress(StoreUnavailable):
        await run.store.add(make_record("posted"))
        acknowledged |= {"posted"}
    return run.after(acknowledged=acknowledged)


def deliver(name: str) -> Callable[[Run], Awaitable[World]]:
    async def send(run: Run) -> World:
        sink = StoreSink(cast("RecordStore", run.store), lambda: NOW, pairing=run.pairing)
        run.store.meanwhile = run.pairing.advance_both
        with suppress(StoreUnavailable):
            assert await sink.deliver([JOBS[name]]) == {}
            run.sent |= {name}
        return run.after()

    return send


def settle(name: str) -> Callable[[Run], Awaitable[World]]:
    async def forget(run: Run) -> World:
        run.sent -= {name}  # where it fails, the entry is sent again
        with suppress(StoreUnavailable):
            await run.spool.settle("local", [ENTRY_IDS[name]], {})
        return run.after()

    return forget


async def copy_store(run: Run) -> World:
    return run.world._replace(copy=Copy(run.world.store))


async def copy_spool(run: Run) -> World:
    return run.world._replace(copy=Copy(run.world.spool))


def actions(world: World, scenario: Scenario) -> Iterator[tuple[str, Callable[[Run], Awaitable[World]]]]:
    """Find the possible actions."""
    if world.copy is None:
        yield f"copy the {scenario.copied}", copy_store if scenario.copied == "store" else copy_spool
    if world.process is None:
        yield "start", start
        if scenario.jobs == 1:
            yield "adopt", adopt
        return
    yield "end", end
    yield "pair", pair
    if scenario.posts:
        yield "beat", beat
    if scenario.posts and not world.acknowledged:
        yield "a client posts", post
    for name in sorted(world.spool.queue - world.process.sent):
        yield f"deliver {name}", deliver(name)
    for name in sorted(world.process.sent):
        yield f"settle {name}", settle(name)


@cache
def is_refused(spool: int, store: int) -> bool:
    """Return whether a start would refuse the generations of a spool and a store, as the real one decides."""
    work = recognise(Generation(SPOOL_ID, spool), "host", STATE, NOW)
    answer: list[tuple[int]] | None = None
    try:
        while True:
            step = work.send(answer)
            assert isinstance(step, Statement)
            answer = [(store,)] if step.name == "find_generation" and store else []
    except StopIteration:
        return False
    except StoreMismatch:
        return True


def faults(world: World) -> Iterator[str]:
    """Find the faults of a world, now or after a crash."""
    for spool in world.spools:
        done = (world.collected - spool.queue) | world.noticed
        for store in world.stores:
            if is_refused(spool.number, store.number):
                yield f"a pair that nobody exchanged is refused (generations {spool.number} and {store.number})"
            if not done <= store.records:
                yield f"lost: {set(done - store.records)}"
            if world.copy is None:
                continue
            if isinstance(world.copy.part, SpoolFile):
                if world.copy.exchanges == 2 and not is_refused(world.copy.part.number, store.number):
                    yield f"an older copy of the spool is not noticed ({world.copy.part} and {store})"
            elif not done <= world.copy.part.records and not is_refused(spool.number, world.copy.part.number):
                yield f"an older copy of the store is not noticed ({spool} and {world.copy.part})"


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, load_migrations(MIGRATIONS), Path(":memory:"))
    yield connection
    connection.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
async def test_no_sequence_of_faults_parts_a_pair_or_hides_an_exchange(
    connection: sqlite3.Connection, scenario: Scenario
) -> None:
    collected = frozenset([*JOBS][: scenario.jobs])
    first = World(SpoolFile(0, collected), collected=collected)
    known, waiting = {first.key()}, deque[tuple[World, tuple[str, ...]]]([(first, ())])
    while waiting:
        world, history = waiting.popleft()
        for name, act in actions(world, scenario):
            choices: Choices | None = Choices(scenario)
            while choices is not None:
                run = Run(world, connection, choices)
                try:
                    after = await act(run)
                    wrong = next(faults(after), "")
                except StoreMismatch as error:
                    after, wrong = world, f"refused: {error}"
                assert not wrong, "\n".join([*history, f"{name} ({choices})", wrong])
                if (key := after.key()) not in known:
                    known.add(key)
                    waiting.append((after, (*history, f"{name} ({choices})")))
                choices = choices.following()


@pytest.mark.parametrize("known", [0, 1, 7])
async def test_adopting_an_exchanged_pair_may_fail_anywhere_and_be_repeated(
    connection: sqlite3.Connection, known: int
) -> None:
    first = World(SpoolFile(3, frozenset()), store=StoredRecords(known, frozenset()))
    choices: Choices | None = Choices(
        Scenario("store", 1, posts=False, fault="fails, but a crash leaves it on the disk")
    )
    while choices is not None:
        failed = await adopt(Run(first, connection, choices))
        adopted = await adopt(Run(failed, connection, Choices(choices.scenario)))
        assert not is_refused(adopted.spool.number, adopted.store.number)
        assert adopted.spool.number > max(3, known)  # no copy of either part passes for the present one
        choices = choices.following()
