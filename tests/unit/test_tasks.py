"""Turns, runs and their error boundary, and the wait after failures."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from auditord.spool import Enqueued
from auditord.tasks.instances import collect
from auditord.tasks.runs import (
    Backoff,
    Listener,
    RunCounts,
    Runnable,
    Turn,
    run_by_the_clock,
    run_continuously,
    run_once,
)
from auditord.testing import FakeCollectorContext, make_record
from auditord_hookspecs import AuditordError, Batch, CollectorContext, LeftOut, RunConfig, RunReport

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def now() -> datetime:
    return NOON


def runnable(execute: Callable[[RunCounts], Awaitable[None]], timeout: timedelta | None = None) -> Runnable:
    return Runnable("slurm", "slurm_kind", execute, timeout)


async def settle() -> None:
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_a_run_that_goes_well_is_counted() -> None:
    async def execute(counts: RunCounts) -> None:
        counts.records += 3
        counts.skipped["never started"] += 1

    report = await run_once(runnable(execute), now)
    assert (report.task, report.kind, report.started, report.error) == ("slurm", "slurm_kind", NOON, None)
    assert (report.records, report.skipped) == (3, {"never started": 1})


@pytest.mark.anyio
async def test_a_failure_is_a_report_that_keeps_the_counts() -> None:
    async def execute(counts: RunCounts) -> None:
        counts.records += 3
        raise AuditordError("sacct is missing: install it")

    report = await run_once(runnable(execute), now)
    assert (report.error, report.records) == ("sacct is missing: install it", 3)


@pytest.mark.anyio
async def test_an_unforeseen_error_has_its_type_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def execute(_: RunCounts) -> None:
        async with anyio.create_task_group():
            raise KeyError("column")

    report = await run_once(runnable(execute), now)
    assert report.error == "KeyError: 'column'"
    (line,) = caplog.records
    assert line.exc_info is not None
    assert vars(line)["task"] == "slurm"
    assert (
        line.getMessage() == "unexpected error, please report it to the authors of the kind slurm_kind (auditord hooks)"
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AuditordError("the printer has no paper"), "the printer has no paper"),
        (ConnectionRefusedError(111, "Connection refused"), "ConnectionRefusedError: [Errno 111] Connection refused"),
        (FileNotFoundError(2, "No such file", "/x"), "FileNotFoundError: [Errno 2] No such file: '/x'"),
        (TimeoutError("no answer"), "TimeoutError: no answer"),
    ],
)
async def test_what_the_system_or_an_author_says_is_one_line(
    error: Exception, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def execute(_: RunCounts) -> None:
        raise error

    assert (await run_once(runnable(execute), now)).error == expected
    assert [line for line in caplog.records if line.levelname != "DEBUG"] == []


@pytest.mark.anyio
async def test_a_run_that_takes_too_long_is_cancelled() -> None:
    report = await run_once(runnable(lambda _: anyio.sleep_forever(), timedelta(seconds=0.01)), now)
    assert report.error is not None
    assert report.error.startswith("was cancelled after 0.01 s")


@pytest.mark.anyio
async def test_a_time_limit_of_the_instance_s_own_is_its_own_failure() -> None:
    async def execute(_: RunCounts) -> None:
        with anyio.fail_after(0.01):
            await anyio.sleep_forever()

    report = await run_once(runnable(execute, timedelta(hours=1)), now)
    assert report.error is not None
    assert report.error.startswith("TimeoutError")


class Runs:
    """Runs that a test lets end one by one."""

    def __init__(self) -> None:
        self.started = 0
        self.reports: list[RunReport] = []
        self.let_end = anyio.Event()

    async def execute(self, _: RunCounts) -> None:
        await self.let_end.wait()

    def listener(self) -> Listener:
        return Listener(started=self.begin, finished=self.finish)

    def begin(self, _: str) -> None:
        self.started += 1
        self.let_end = anyio.Event()

    async def finish(self, report: RunReport) -> None:
        self.reports.append(report)


@pytest.mark.anyio
async def test_runs_never_overlap_and_a_tick_in_a_run_is_left_out() -> None:
    runs, turn = Runs(), Turn()
    async with anyio.create_task_group() as group:
        group.start_soon(run_by_the_clock, runnable(runs.execute), turn, runs.listener(), now)
        assert turn.tick()
        await settle()
        assert (runs.started, turn.running) == (1, True)
        assert not turn.tick()
        runs.let_end.set()
        await settle()
        assert (runs.started, len(runs.reports), turn.running) == (1, 1, False)
        group.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_continuous_collector_that_ends_has_failed_and_comes_back() -> None:
    reports = list[RunReport]()
    again = anyio.Event()

    async def execute(_: RunCounts) -> None:
        await anyio.lowlevel.checkpoint()

    async def finished(report: RunReport) -> None:
        reports.append(report)
        if len(reports) == 2:
            again.set()

    listener = Listener(started=lambda _: None, finished=finished)
    async with anyio.create_task_group() as group:
        with anyio.fail_after(20):
            group.start_soon(run_continuously, runnable(execute), Backoff(lambda: 1.0), listener, now)
            await again.wait()
        group.cancel_scope.cancel()
    assert {report.error for report in reports} == {"ended, although a continuous collector never should"}


def test_waits_double_up_to_a_minute_and_start_again() -> None:
    backoff = Backoff(lambda: 0.0)
    assert [backoff.next().total_seconds() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    for _ in range(5_000):
        backoff.next()
    assert backoff.next() == timedelta(minutes=1)
    backoff.failures = 0
    assert backoff.next() == timedelta(seconds=1)


def test_chance_takes_away_up_to_half() -> None:
    assert Backoff(lambda: 1.0).next() == timedelta(seconds=0.5)


@pytest.mark.anyio
async def test_the_next_batch_is_asked_for_only_when_the_last_is_kept() -> None:
    steps = list[str]()

    async def produce(_: Any, context: CollectorContext) -> AsyncGenerator[Batch, None]:
        for name in ("a", "b"):
            steps.append(f"made {name} after {context.checkpoint}")
            yield Batch([make_record(name)], skipped={"never started": 2})

    async def keep(batch: Batch) -> Enqueued:
        await anyio.lowlevel.checkpoint()
        steps.append("kept")
        return Enqueued(len(batch.records), 1)

    counts = RunCounts()
    await collect(produce(RunConfig(), FakeCollectorContext(checkpoint=5)), keep, counts, FakeCollectorContext().log)
    assert steps == ["made a after 5", "kept", "made b after 5", "kept"]
    assert (counts.records, counts.quarantined, counts.skipped) == (2, 2, {"never started": 4})


@pytest.mark.anyio
async def test_a_collector_cleans_up_when_its_batch_cannot_be_kept() -> None:
    closed = list[bool]()

    async def produce(*_: Any) -> AsyncGenerator[Batch, None]:
        try:
            yield Batch()
        finally:
            await anyio.lowlevel.checkpoint()
            closed.append(True)

    async def keep(_: Batch) -> Enqueued:
        raise AuditordError("disk full")

    with pytest.raises(AuditordError, match="disk full"):
        await collect(produce(), keep, RunCounts(), FakeCollectorContext().log)
    assert closed == [True]


@pytest.mark.anyio
async def test_what_records_lack_is_logged_once_per_run_and_name(caplog: pytest.LogCaptureFixture) -> None:
    async def produce() -> AsyncGenerator[Batch, None]:
        for number in range(3):
            record_id = f"r{number}"
            lacking = [LeftOut("MaxRSS", "16E is too much", label, record_id) for label in (False, True)]
            lacking.append(LeftOut("Cores", "0.4 was rounded", record_id=record_id, rounded=True))
            lacking.append(LeftOut("Memory", "components.2: sub_key 'memm' is in none of 20 rows"))
            yield Batch([make_record(record_id)], left_out=lacking)

    async def keep(batch: Batch) -> Enqueued:
        await anyio.lowlevel.checkpoint()
        return Enqueued(len(batch.records), 0)

    counts = RunCounts()
    await collect(produce(), keep, counts, FakeCollectorContext().log)
    assert [record.message for record in caplog.records] == counts.remarks
    assert counts.remarks == [
        "r0 has no component MaxRSS, and other records may lack it too: 16E is too much",
        "r0 has no label MaxRSS, and other records may lack it too: 16E is too much",
        "r0 is not exact, and other records may not be either: 0.4 was rounded",
        "no record has component Memory: components.2: sub_key 'memm' is in none of 20 rows",
    ]
