"""The store's way and the bare SQL in turns, so that whatever else the machine does weighs on both."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psycopg

from tests.benchmark.measured import family_cpu_seconds


@dataclass(frozen=True)
class Turn:
    """Seconds of one pair: on the clock, and of CPU, which a busy machine disturbs least."""

    ours: float
    bare: float
    our_cpu: float
    bare_cpu: float


@dataclass(frozen=True)
class Turns:
    """All pairs. CPU is that of this process and of the database server's."""

    turns: list[Turn]

    def __str__(self) -> str:
        ours, bare = [turn.ours for turn in self.turns], [turn.bare for turn in self.turns]
        pairs = [turn.ours / turn.bare for turn in self.turns]
        our_cpu, bare_cpu = sum(turn.our_cpu for turn in self.turns), sum(turn.bare_cpu for turn in self.turns)
        return (
            f"{median(ours) * 1000:.0f} ms, bare SQL {median(bare) * 1000:.0f} ms, ratio {median(pairs):.2f}"
            f" (pairs {min(pairs):.2f} to {max(pairs):.2f}), CPU {our_cpu / len(self.turns) * 1000:.0f} ms,"
            f" bare SQL {bare_cpu / len(self.turns) * 1000:.0f} ms, ratio {our_cpu / bare_cpu if bare_cpu else 0:.2f}"
        )


async def in_turns(url: str, rounds: int, ours: Callable[[], Awaitable[object]], bare: Callable[[], object]) -> Turns:
    """Run both so often, after one run of each that does not count."""
    cpu_seconds = _clock_of_cpu(url)
    await ours()
    bare()
    turns: list[Turn] = []
    for _ in range(rounds):
        began, used = time.perf_counter(), cpu_seconds()
        await ours()
        middle, used_then = time.perf_counter(), cpu_seconds()
        bare()
        ended, used_last = time.perf_counter(), cpu_seconds()
        turns.append(Turn(middle - began, ended - middle, used_then - used, used_last - used_then))
    return Turns(turns)


def _clock_of_cpu(url: str) -> Callable[[], float]:
    if url.startswith("sqlite:"):
        return time.process_time
    with psycopg.connect(url) as server:
        row = server.execute("SHOW data_directory").fetchone()
        folder = "" if row is None else str(row[0])
    pid_file = Path(folder, "postmaster.pid")
    if not pid_file.exists():  # a server on another machine
        return time.process_time
    pid = int(pid_file.read_text().split()[0])
    return lambda: time.process_time() + family_cpu_seconds(pid)
