"""``GET /metrics`` with the counts of thousands of users and many routes, beside ``generate_latest`` of the same."""

import sys
import time
from collections.abc import Callable
from statistics import median

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from auditord.metrics import CountedKey, DatabaseMetrics, exposition
from auditord.web.dispatch import HttpMetrics

SCRAPES = 20
ROUTES = 25


def measure(users: int) -> str:
    registry = CollectorRegistry()
    keys = (CountedKey("num_records_database_per_user", "user_id", "user_id"),)
    counts = DatabaseMetrics(total=True, keys=keys, max_values=users)
    registry.register(counts)
    http = HttpMetrics()
    for number in range(ROUTES):
        http.route(f"/route-{number}", "GET")[200].observe(0.01, 0, 1_000)
    registry.register(http)

    def count_again() -> bytes:
        counts.update(2_000_000, {"user_id": {f"user-{number}": 1_000 + number for number in range(users)}}, 0)
        return exposition(registry)

    anew, same = milliseconds(count_again), milliseconds(lambda: exposition(registry))
    plain = milliseconds(lambda: generate_latest(registry))
    return (
        f"\n{users:,} users, ms of CPU: {anew:.2f} after a count, {same:.2f} between counts (goal 3), "
        f"{plain:.2f} by generate_latest: {plain / same:.0f} times as much\n"
    )


def milliseconds(scrape: Callable[[], bytes]) -> float:
    """Of CPU time that a scrape takes."""
    taken: list[float] = []
    for _ in range(SCRAPES):
        begun = time.thread_time()
        assert b"num_records_database_per_user{" in scrape()
        taken.append(time.thread_time() - begun)
    return median(taken) * 1e3


@pytest.mark.benchmark
def test_metrics_of_many_users(capsys: pytest.CaptureFixture[str]) -> None:
    text = measure(2_000)
    with capsys.disabled():
        sys.stdout.write(text)


def test_metrics_of_many_users_in_small() -> None:
    assert "between counts" in measure(20)
