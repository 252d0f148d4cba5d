"""Large answers in pieces, long periods in parts: what is read, how often, and what happens at a limit."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pytest

from auditord.testing import FakeCollectorContext
from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.kinds import SLURM
from auditord_hookspecs import CommandFailed, Window

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)

Refuse: TypeAlias = Callable[[timedelta], CommandFailed | None]
"""The error that a period of this length meets."""


def options_of(argv: Sequence[str]) -> dict[str, str]:
    parts = [option.removeprefix("--").partition("=") for option in argv if option.startswith("--")]
    return {name: value for name, _, value in parts}


def length(argv: Sequence[str]) -> timedelta:
    options = options_of(argv)
    return datetime.fromisoformat(options["endtime"]) - datetime.fromisoformat(options["starttime"])


class Cluster:
    """Plays sacct: jobs end every so often within a period; it may refuse or take too long."""

    def __init__(self, start: datetime, jobs: int, every: timedelta, refuse: Refuse | None = None) -> None:
        self.ends = [int((start + number * every).timestamp()) for number in range(jobs)]
        self.refuse = refuse
        self.asked: list[timedelta] = []

    def __call__(self, argv: Sequence[str]) -> bytes:
        self.asked.append(length(argv))
        if self.refuse is not None and (error := self.refuse(length(argv))) is not None:
            raise error
        options = options_of(argv)
        columns, delimiter = options["format"].split(","), options["delimiter"]
        start, stop = (datetime.fromisoformat(options[name]).replace(tzinfo=UTC) for name in ("starttime", "endtime"))
        lines = [
            delimiter.join(self._row(number, end).get(column, "") for column in columns)
            for number, end in enumerate(self.ends, start=1)
            if start.timestamp() <= end <= stop.timestamp()
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    def _row(self, number: int, end: int) -> dict[str, str]:
        known = {"Cluster": "c1", "State": "COMPLETED", "NCPUS": "1", "User": "alice", "NodeList": "n01"}
        ids = {"JobID": str(number), "JobIDRaw": str(number)}
        return {**known, **ids, "Submit": str(end - 9), "Start": str(end - 9), "End": str(end)}


def config(start: datetime, **options: Any) -> SlurmConfig:
    return SlurmConfig.model_validate(
        {"earliest_datetime": start, "components": "auditor", "lag": "0s", "overlap": "0s", **options}
    )


async def collected(chosen: SlurmConfig, cluster: Cluster, **options: Any) -> tuple[list[str], FakeCollectorContext]:
    at = FakeCollectorContext(moment=NOW, commands=cluster, **options)
    return [record.record_id for record in await at.keep(SLURM.collect(chosen, at))], at


async def test_seven_empty_years_are_few_questions() -> None:
    empty = Cluster(NOW, 0, HOUR)
    made, at = await collected(config(datetime(2020, 1, 1, tzinfo=UTC)), empty)
    assert made == []
    assert datetime.fromisoformat(at.checkpoint["until"]) == NOW
    assert len(empty.asked) < 100
    assert max(empty.asked) == timedelta(days=32)


async def test_where_there_are_many_jobs_the_questions_are_as_long_as_configured() -> None:
    busy = Cluster(NOW - 100 * HOUR, 24_000, timedelta(seconds=15))
    made, _ = await collected(config(NOW - 100 * HOUR), busy)
    assert len(set(made)) == len(made) == 24_000
    assert max(busy.asked) == 6 * HOUR


async def test_a_large_answer_is_many_batches_and_only_the_last_moves_the_checkpoint() -> None:
    busy = Cluster(NOW - HOUR, 15_000, timedelta(seconds=0.2))
    made, at = await collected(config(NOW - HOUR), busy)
    assert len(set(made)) == len(made) == 15_000
    full = [batch for batch in at.kept if batch.records]
    ends = [datetime.fromisoformat(batch.checkpoint["until"]) for batch in full if batch.checkpoint]
    assert ends == [NOW - HOUR] * (len(full) - 1) + [NOW]
    assert len(full) > 1
    assert max(len(batch.records) for batch in full) < 13_000


async def test_a_line_that_belongs_to_no_job_is_quarantined_wherever_it_stands() -> None:
    cluster = Cluster(NOW - HOUR, 3, timedelta(minutes=1))

    def complaining(argv: Sequence[str]) -> bytes:
        return b"sacct: something is odd\n" + cluster(argv) + b"and odd again\n"

    at = FakeCollectorContext(moment=NOW, commands=complaining)
    made = await at.keep(SLURM.collect(config(NOW - HOUR), at))
    assert len(made) == 3
    quarantined = [each.raw for batch in at.kept for each in batch.quarantined]
    assert quarantined == [{"line": "sacct: something is odd"}, {"line": "and odd again"}]


def too_much(most: timedelta) -> Refuse:
    error = CommandFailed("`sacct` was killed: it printed more than 9 bytes", printed_too_much=True)
    return lambda asked: error if asked > most else None


def too_slow(most: timedelta) -> Refuse:
    return lambda asked: CommandFailed("`sacct` was killed after 9 s", timed_out=True) if asked > most else None


@pytest.mark.parametrize(
    ("refuse", "option", "calls"),
    [(too_much(HOUR), "sacct_max_output", 3), (too_slow(HOUR), "sacct_timeout", 1)],
)
@pytest.mark.parametrize("again", [False, True])
async def test_at_a_limit_less_is_asked_for_at_a_time(
    caplog: pytest.LogCaptureFixture, *, refuse: Refuse, option: str, calls: int, again: bool
) -> None:
    caplog.set_level(logging.WARNING)
    cluster = Cluster(NOW - 12 * HOUR, 6_000, timedelta(seconds=7), refuse)
    window = {"window": SLURM_WINDOW} if again else {}
    made, _ = await collected(config(NOW - 12 * HOUR), cluster, **window)
    assert len(set(made)) == 6_000
    refused = [line for line in caplog.messages if f"(option {option})" in line]
    assert len(refused) == calls
    assert refused[0].startswith("`sacct` was killed")


SLURM_WINDOW = Window(NOW - 12 * HOUR, NOW)


async def test_a_limit_that_a_second_meets_fails_the_run_and_names_the_option() -> None:
    cluster = Cluster(NOW - HOUR, 1, HOUR, too_much(timedelta(0)))
    with pytest.raises(CommandFailed, match=r"more than 9 bytes \(option sacct_max_output\)"):
        await collected(config(NOW - HOUR), cluster)
    assert min(cluster.asked) == timedelta(seconds=1)


async def test_a_slurmdbd_that_refuses_long_periods_gets_none() -> None:
    """MaxQueryTimeRange: what was made longer is taken back, once, and what is asked for by the option stays."""

    def refuse(asked: timedelta) -> CommandFailed | None:
        return CommandFailed("`sacct` ended with exit code 1: Too wide of a date range") if asked > 24 * HOUR else None

    cluster = Cluster(NOW, 0, HOUR, refuse)
    _, at = await collected(config(NOW - 240 * HOUR), cluster)
    assert datetime.fromisoformat(at.checkpoint["until"]) == NOW
    assert sum(asked > 24 * HOUR for asked in cluster.asked) == 1


async def test_an_outage_is_no_reason_to_ask_again_and_again() -> None:
    cluster = Cluster(NOW - HOUR, 1, HOUR, lambda _: CommandFailed("`sacct` ended with exit code 1: refused"))
    with pytest.raises(CommandFailed, match="refused"):
        await collected(config(NOW - HOUR), cluster)
    assert len(cluster.asked) == 1
