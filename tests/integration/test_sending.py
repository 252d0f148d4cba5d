"""The send loop over a real spool: nothing is lost, nothing overtakes, one bad entry blocks nobody."""

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from auditord.spool import Queued, Spool, Stage
from auditord.tasks import senders
from auditord.tasks.senders import SendLoop
from auditord.testing import FakeSenderContext, make_record
from auditord_hookspecs import (
    Batch,
    Close,
    Entry,
    Insert,
    InstanceConfig,
    Provenance,
    RecordsRejected,
    Sender,
    SenderContext,
    SenderKind,
)
from tests.quarantined_entries import read_quarantine

pytestmark = pytest.mark.anyio


def now() -> datetime:
    return datetime.now(UTC)


class Destination:
    """A destination that a test breaks and mends."""

    def __init__(self) -> None:
        self.arrived: list[str] = []
        self.batches: list[int] = []
        self.opened = 0
        self.fault: Callable[[Sequence[str]], None] = lambda _: None

    @asynccontextmanager
    async def open(self, config: Any, context: SenderContext) -> AsyncGenerator[Sender, None]:
        del config, context
        self.opened += 1
        yield self

    async def send(self, entries: Sequence[Entry]) -> None:
        ids = [_id(entry) for entry in entries]
        self.batches.append(len(ids))
        self.fault(ids)
        self.arrived += ids


def _id(entry: Entry) -> str:
    return f"close {entry.record_id}" if isinstance(entry, Close) else entry.record.record_id


class RecordedCalls:
    """The calls of the listener."""

    def __init__(self) -> None:
        self.delivered = 0
        self.refused = 0
        self.faults: list[str] = []

    def note_sent(self, delivered: int, refused: int) -> None:
        self.delivered += delivered
        self.refused += refused

    def note_fault(self, error: str, failures: int) -> None:
        del failures
        self.faults.append(error)


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    async with Spool.opened(tmp_path, now) as spool:
        yield spool


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord.tasks.runs.FIRST", timedelta(milliseconds=1))
    monkeypatch.setattr("auditord.tasks.runs.LONGEST", timedelta(milliseconds=500))


def make_loop(spool: Spool, destination: Destination, heard: RecordedCalls, batch_size: int = 8) -> SendLoop:
    kind = SenderKind(name="test", config=InstanceConfig, open=destination.open, batch_size=batch_size)
    context = FakeSenderContext()
    return SendLoop("far", kind, InstanceConfig(), context, spool=spool, listener=heard, now=now, random=lambda: 0.5)


async def wait_until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(120):
        while not condition():  # noqa: ASYNC110 the loop under test has no event for it
            await anyio.sleep(0.005)


def records(*names: str) -> Batch:
    return Batch([make_record(name) for name in names])


def arrived_last(destination: Destination, name: str) -> bool:
    return destination.arrived[-1:] == [name]


async def depth(spool: Spool) -> int:
    statistics = (await spool.statistics()).queues.get("far")
    return 0 if statistics is None else statistics.entries


async def test_what_is_queued_is_sent_at_once_and_forgotten(spool: Spool) -> None:
    destination, heard = Destination(), RecordedCalls()
    loop = make_loop(spool, destination, heard)
    async with anyio.create_task_group() as group:
        group.start_soon(loop.run)
        for name in "abc":
            await spool.enqueue("slurm", records(name), ["far"])
            await wait_until(functools.partial(arrived_last, destination, name))
        loop.drain()
    assert (await depth(spool), heard.delivered, destination.opened) == (0, 3, 1)


async def test_draining_sends_all_that_is_there(spool: Spool) -> None:
    destination = Destination()
    await spool.enqueue("slurm", records(*(f"r{n:03}" for n in range(100))), ["far"])
    loop = make_loop(spool, destination, RecordedCalls())
    loop.drain()
    with anyio.fail_after(30):
        await loop.run()
    assert destination.arrived == [f"r{n:03}" for n in range(100)]
    assert max(destination.batches) == 8


async def test_a_destination_that_is_away_gets_everything_when_it_is_back(spool: Spool) -> None:
    destination, heard = Destination(), RecordedCalls()

    def away(_: Sequence[str]) -> None:
        raise ConnectionError("connection refused")

    destination.fault = away
    await spool.enqueue("slurm", records("a", "b"), ["far"])
    loop = make_loop(spool, destination, heard)
    async with anyio.create_task_group() as group:
        group.start_soon(loop.run)
        await wait_until(lambda: len(heard.faults) >= 3)
        await spool.accept([Close("a", now())], Provenance(now()), ["far"])
        destination.fault = lambda _: None
        await wait_until(lambda: len(destination.arrived) == 3)
        loop.drain()
    assert destination.arrived.index("a") < destination.arrived.index("close a")
    assert destination.opened > 1
    assert heard.faults[0] == "ConnectionError: connection refused"
    assert await depth(spool) == 0


async def test_what_is_refused_for_good_goes_to_quarantine_and_the_rest_arrives(spool: Spool) -> None:
    destination, heard = Destination(), RecordedCalls()

    def refuse_b(ids: Sequence[str]) -> None:
        if "b" in ids:
            raise RecordsRejected({ids.index("b"): "the id belongs to another run"})

    destination.fault = refuse_b
    await spool.enqueue("slurm", records("a", "b", "c"), ["far"])
    loop = make_loop(spool, destination, heard)
    loop.drain()
    with anyio.fail_after(30):
        await loop.run()
    (entry,) = await read_quarantine(spool)
    assert (entry.stage, entry.source_id, entry.reason) == (Stage.ENTRY, "b", "the id belongs to another run")
    assert (heard.delivered, heard.refused, await depth(spool)) == (2, 1, 0)


@pytest.mark.parametrize("count", [1, 5])
async def test_entries_that_break_every_batch_block_nobody(spool: Spool, count: int) -> None:
    destination, heard = Destination(), RecordedCalls()
    poison = {f"poison-{n}" for n in range(count)}

    def choke(ids: Sequence[str]) -> None:
        if not poison.isdisjoint(ids):
            raise ValueError("cannot serialise this")

    destination.fault = choke
    names = [f"r{n:02}" for n in range(40)]
    await spool.enqueue("slurm", records(*names[:20], *poison, *names[20:]), ["far"])
    loop = make_loop(spool, destination, heard)
    async with anyio.create_task_group() as group:
        group.start_soon(loop.run)
        await wait_until(lambda: len(destination.arrived) >= 40)
        assert sorted(destination.arrived) == names
        await wait_until(lambda: heard.delivered == 40)
        assert await depth(spool) == count  # they wait, and are not lost
        destination.fault = lambda _: None
        await wait_until(lambda: poison.issubset(destination.arrived))
        loop.drain()


async def send_one(spool: Spool, destination: Destination, heard: RecordedCalls) -> None:
    """Let a loop send one record until it has arrived."""
    await spool.enqueue("slurm", records("a"), ["far"])
    loop = make_loop(spool, destination, heard)
    async with anyio.create_task_group() as group:
        group.start_soon(loop.run)
        await wait_until(lambda: destination.arrived == ["a"])
        loop.drain()


async def test_a_send_that_hangs_is_a_fault(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders, "SEND_TIMEOUT", 0.02)
    heard = RecordedCalls()

    class Hanging(Destination):
        async def send(self, entries: Sequence[Entry]) -> None:
            if not heard.faults:
                await anyio.sleep_forever()
            await super().send(entries)

    await send_one(spool, Hanging(), heard)
    assert heard.faults[0].startswith("TimeoutError")


async def test_a_destination_that_cannot_be_opened_is_a_fault(spool: Spool) -> None:
    heard = RecordedCalls()

    class Closed(Destination):
        @asynccontextmanager
        async def open(self, config: Any, context: SenderContext) -> AsyncGenerator[Sender, None]:
            if not heard.faults:
                raise OSError("no route to host")
            async with super().open(config, context) as sender:
                yield sender

    await send_one(spool, Closed(), heard)
    assert heard.faults == ["OSError: no route to host"]


async def test_an_interrupted_send_is_repeated(spool: Spool) -> None:
    destination = Destination()
    await spool.enqueue("slurm", records("a", "b"), ["far"])
    begun = anyio.Event()

    class Interrupted(Destination):
        async def send(self, entries: Sequence[Entry]) -> None:
            await super().send(entries)
            begun.set()
            await anyio.sleep_forever()  # it has arrived, but nobody has settled it

    async with anyio.create_task_group() as group:
        group.start_soon(make_loop(spool, Interrupted(), RecordedCalls()).run)
        await begun.wait()
        group.cancel_scope.cancel()
    loop = make_loop(spool, destination, RecordedCalls())
    loop.drain()
    await loop.run()
    assert destination.arrived == ["a", "b"]


async def postponed(spool: Spool) -> None:
    """One entry that waits for half an hour."""
    await spool.accept([Insert(make_record("a"))], Provenance(now()), ["far"])
    (queued,) = await spool.claim("far", 1)
    await spool.postpone({queued.entry_id: now() + timedelta(minutes=30)})


async def test_a_restart_tries_at_once_what_was_waiting(spool: Spool) -> None:
    await postponed(spool)
    destination = Destination()
    loop = make_loop(spool, destination, RecordedCalls())
    async with anyio.create_task_group() as group:
        group.start_soon(loop.run)
        await wait_until(lambda: destination.arrived == ["a"])
        loop.drain()


async def test_what_is_queued_while_the_queue_is_read_is_sent_before_the_end(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination, claim = Destination(), spool.claim
    loop = make_loop(spool, destination, RecordedCalls())

    async def late(sender: str, limit: int) -> Sequence[Queued]:
        claimed = await claim(sender, limit)
        if not destination.arrived and not claimed:
            await spool.enqueue("slurm", records("a"), ["far"])
            loop.drain()
        return claimed

    monkeypatch.setattr(spool, "claim", late)
    with anyio.fail_after(30):
        await loop.run()
    assert (destination.arrived, await depth(spool)) == (["a"], 0)


async def test_draining_does_not_wait_for_the_next_attempt(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord.tasks.runs.FIRST", timedelta(minutes=30))
    monkeypatch.setattr("auditord.tasks.runs.LONGEST", timedelta(minutes=30))
    destination, heard = Destination(), RecordedCalls()

    def away(_: Sequence[str]) -> None:
        raise ConnectionError("connection refused")

    destination.fault = away
    await spool.enqueue("slurm", records("a"), ["far"])
    loop = make_loop(spool, destination, heard)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(loop.run)
            await wait_until(lambda: bool(heard.faults))
            destination.fault = lambda _: None
            loop.drain()
    assert (destination.arrived, await depth(spool)) == (["a"], 0)


async def test_draining_that_begins_while_a_fault_is_noted_does_not_wait_either(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditord.tasks.runs.FIRST", timedelta(minutes=30))
    monkeypatch.setattr("auditord.tasks.runs.LONGEST", timedelta(minutes=30))
    destination, heard = Destination(), RecordedCalls()

    def away_for_once(_: Sequence[str]) -> None:
        destination.fault = lambda _: None
        raise ConnectionError("connection refused")

    destination.fault = away_for_once
    await spool.enqueue("slurm", records("a"), ["far"])
    loop = make_loop(spool, destination, heard)
    postpone = spool.postpone

    async def drained_meanwhile(until: Mapping[int, datetime]) -> None:
        loop.drain()
        await postpone(until)

    monkeypatch.setattr(spool, "postpone", drained_meanwhile)
    with anyio.fail_after(30):
        await loop.run()
    assert (destination.arrived, await depth(spool)) == (["a"], 0)
