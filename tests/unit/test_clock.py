"""The clock: when it asks for runs."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Self

import anyio
import anyio.lowlevel
import pytest

from auditord.tasks import runs
from auditord.tasks.runs import Clock, Turn, latest_tick

HOUR = timedelta(hours=1)
NONE = timedelta(0)

pytestmark = pytest.mark.anyio


def no_delay() -> float:
    return 0.0


def nothing() -> None:
    pass


async def within_seconds(wait: Callable[[], Awaitable[object]]) -> None:
    with anyio.fail_after(20):
        await wait()


async def take(turn: Turn, times: int = 1) -> None:
    for _ in range(times):
        async with turn.take():
            pass


async def test_the_first_run_is_at_start_then_by_interval() -> None:
    clock, turn = Clock(no_delay), Turn()
    clock.add("slurm", turn, timedelta(seconds=0.05), NONE, nothing)
    async with clock.running():
        await within_seconds(lambda: take(turn, 4))
        assert clock.next_run("slurm") is not None


async def test_a_cron_line_is_in_utc_and_runs_at_start_as_well() -> None:
    clock, turn = Clock(no_delay), Turn()
    clock.add("monthly", turn, "30 4 1 * *", NONE, nothing)
    async with clock.running():
        await within_seconds(lambda: take(turn))
        moment = clock.next_run("monthly")
    assert moment is not None
    assert (moment.day, moment.hour, moment.minute, moment.utcoffset()) == (1, 4, 30, NONE)


async def test_days_of_the_week_are_those_of_the_name() -> None:
    clock = Clock(no_delay)
    clock.add("weekly", Turn(), "0 0 * * sun", NONE, nothing)
    async with clock.running():
        moment = clock.next_run("weekly")
    assert moment is not None
    assert moment.strftime("%A") == "Sunday"


async def test_a_tick_in_a_run_is_skipped_and_counted() -> None:
    clock, turn, skipped = Clock(no_delay), Turn(), anyio.Event()
    clock.add("slurm", turn, timedelta(seconds=0.05), NONE, skipped.set)
    async with clock.running(), turn.take():
        await within_seconds(skipped.wait)


async def test_jitter_delays_the_first_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, delays = asyncio.get_running_loop(), list[float]()
    call_later = loop.call_later

    def call_soon(delay: float, callback: Callable[..., object], *args: Any) -> object:
        delays.append(delay)
        return call_later(0 if delay == 45 else delay, callback, *args)

    monkeypatch.setattr(loop, "call_later", call_soon)
    clock, turn = Clock(lambda: 0.25), Turn()
    clock.add("slurm", turn, HOUR, timedelta(minutes=3), nothing)
    async with clock.running():
        await within_seconds(lambda: take(turn))
    assert 45 in delays


class Ahead(datetime):
    """The time of a host whose clock is ahead."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + timedelta(days=100)


async def test_ticks_go_on_after_the_clock_of_the_host_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_BETWEEN_LOOKS", 0.05)
    clock, turn = Clock(no_delay), Turn()
    with monkeypatch.context() as ahead:
        for module in ("schedulers.base", "triggers.interval"):
            ahead.setattr(f"apscheduler.{module}.datetime", Ahead)
        clock.add("slurm", turn, timedelta(seconds=0.1), NONE, nothing)
        clock.add("monthly", Turn(), "30 4 1 * *", NONE, nothing)
        async with clock.running(), anyio.create_task_group() as group:
            await within_seconds(lambda: take(turn, 2))
            ahead.undo()
            group.start_soon(clock.follow_host)
            await within_seconds(lambda: take(turn, 3))
            moment = clock.next_run("monthly")
            assert moment is not None
            assert moment - datetime.now(UTC) <= timedelta(days=31)
            group.cancel_scope.cancel()


async def test_an_instance_without_ticks_has_no_next_run() -> None:
    assert Clock(no_delay).next_run("other") is None


async def test_a_stopped_clock_asks_no_more() -> None:
    clock, turn = Clock(no_delay), Turn()
    clock.add("slurm", turn, timedelta(seconds=0.01), NONE, nothing)
    async with clock.running():
        await within_seconds(lambda: take(turn))
    await within_seconds(lambda: _quiet(turn))


@pytest.mark.parametrize("jitter", [NONE, HOUR])
@pytest.mark.parametrize("turns_of_the_loop", [0, 1, 2, 5])
async def test_a_clock_that_is_stopped_as_it_starts_logs_nothing(
    jitter: timedelta, turns_of_the_loop: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(lambda: 1.0)
    for number in range(5):
        clock.add(f"slurm {number}", Turn(), HOUR, jitter, nothing)
    async with clock.running():
        for _ in range(turns_of_the_loop):
            await anyio.lowlevel.checkpoint()
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    assert [each.getMessage() for each in caplog.records if each.levelname in {"WARNING", "ERROR"}] == []


async def _quiet(turn: Turn) -> None:
    """One request may have been under way; after it no other comes in ten intervals."""
    with anyio.move_on_after(0.1) as scope:
        await take(turn, 2)
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("line", "tick"),
    [
        ("* * * * *", "2026-03-10T12:30:00"),
        ("30 12 * * *", "2026-03-10T12:30:00"),
        ("31 12 * * *", "2026-03-09T12:31:00"),
        ("0 0 * * sun", "2026-03-08T00:00:00"),
        ("*/20 4 1 * *", "2026-03-01T04:40:00"),
        ("0 0 11 3 *", "2025-03-11T00:00:00"),
        ("0 0 29 2 *", "2024-02-29T00:00:00"),
        ("0 0 30 2 *", None),
    ],
)
@pytest.mark.parametrize("seconds", [0.0, 0.000001, 59.9])
def test_the_latest_tick_of_a_cron_line(line: str, tick: str | None, seconds: float) -> None:
    now = datetime(2026, 3, 10, 12, 30, tzinfo=UTC) + timedelta(seconds=seconds)
    assert latest_tick(line, now) == (None if tick is None else datetime.fromisoformat(f"{tick}+00:00"))
