"""Measure the cost of folding for those who write: ``python -m tests.measurements.folding URL [--records 1000000]``.

A daemon with so many records to fold is loaded with single posts on 64 connections and asked for ``/metrics`` beside
them; then the same once all is folded. The goal: no more than twice the time. URL is ``sqlite:///path`` or that of a
migrated PostgreSQL database. A store that has records is used again: its cells are dropped before each round.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import anyio

from auditord.store.opening import open_store, open_store_for_reading
from tests.benchmark.test_costly_requests import daemon, fill
from tests.measurements.throughput import LOAD, asked, seconds

SECONDS: Final = 6
CONNECTIONS: Final = 64


class Answers(NamedTuple):
    """Times in milliseconds, and posts per second."""

    post_p50: float
    post_p99: float
    per_second: float
    metrics_p50: float
    metrics_worst: float


async def unfold(url: str, records: int) -> None:
    """Fill an empty store, and drop the cells."""
    async with open_store(url, counted_keys=()) as store:
        missing = records - (await store.counts()).total
    if missing > 0:
        await fill(url, missing)
    async with open_store(url, counted_keys=()) as store:
        await store.rollups.start_over()


def measured(port: int) -> Answers:
    """Post for some seconds, and ask for the metrics meanwhile."""
    command = [sys.executable, str(LOAD), str(port), "/record", str(CONNECTIONS), str(SECONDS), "folding"]
    with ThreadPoolExecutor(1) as threads:
        load = threads.submit(subprocess.run, command, check=True, capture_output=True, text=True)
        metrics = list[float]()
        while not load.done():
            metrics.append(1e3 * seconds(lambda: asked(port, "GET", "/metrics")))
            time.sleep(0.1)
        posted = json.loads(load.result().stdout)
    assert not posted["failures"]
    return Answers(posted["p50_ms"], posted["p99_ms"], posted["per_second"], median(metrics), max(metrics))


async def is_folded(url: str) -> bool:
    """Return whether the cells have all records, but for those of the last seconds."""
    async with open_store_for_reading(url) as store:
        waiting = (await store.counts()).unread
    return not any(oldest for consumer, oldest in waiting.items() if consumer.startswith("rollup:"))


def main() -> None:
    """Print a line for each round and state."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for _ in range(given.rounds):
        anyio.run(unfold, given.url, given.records)
        with tempfile.TemporaryDirectory() as folder, daemon(Path(folder), given.url, until_idle=False) as (port, _):
            folding, was_folded = measured(port), anyio.run(is_folded, given.url)
            while not anyio.run(is_folded, given.url):
                time.sleep(1)
            for name, answers in (("folding", folding), ("folded", measured(port))):
                texts = [f"{field.replace('_', ' ')} {value:,.1f}" for field, value in answers._asdict().items()]
                sys.stdout.write(f"{name}{' (ended meanwhile)' if was_folded else ''}: {', '.join(texts)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
