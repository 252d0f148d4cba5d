"""Readers who ask for as much as they can at once: memory stays small, and all of it ends when they leave.

``-s`` shows what was measured. ``AUDITORD_ATTACK_RECORDS`` is the number of records, 500,000 by default.
"""

import os
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Final
from urllib.parse import quote

import anyio
import pytest

from tests.acceptance.attacks.served import Daemon
from tests.benchmark.test_costly_requests import fill
from tests.costly_requests import PRODUCTS, WHOLE

RECORDS: Final = int(os.environ.get("AUDITORD_ATTACK_RECORDS", "500000"))
READERS: Final = 4
MOST_MEMORY: Final = 400
"""MiB."""

REST: Final = 60
"""Seconds within which the daemon has nothing to do after its readers have left."""

PATIENCE: Final = 45
"""Seconds after which readers leave."""

FILES: Final = tuple(f"/usage.{form}?by=user&bin=month&{WHOLE}" for form in ("csv", "xlsx"))
TARGETS: Final = (*(f"/api/v1/aggregates?{quote(each, safe='=&:')}" for each in PRODUCTS), *FILES)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_000)]


@pytest.fixture(params=["sqlite", "postgres"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Daemon, None, None]:
    """A daemon with many records."""
    (tmp_path / "state").mkdir(mode=0o700)
    url = f"sqlite:///{tmp_path}/records.db"
    if request.param == "postgres":
        make: Callable[[], str] = request.getfixturevalue("new_postgres_url")
        url = make()
    anyio.run(fill, url, RECORDS)
    with Daemon(tmp_path, url, stored=0).running() as running:
        _rests(running, 600)  # all records are in the roll-ups
        yield running


def _rests(daemon: Daemon, seconds: float) -> bool:
    """Return whether the process has next to nothing to do for a second, before some seconds have passed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        begun = daemon.cpu()
        time.sleep(1)
        if daemon.cpu() - begun < 0.2:
            return True
    return False


def _asked(daemon: Daemon, target: str, patience: float) -> int:
    """Read an answer to its end, or leave; return the status, 0 if there was none."""
    with suppress(TimeoutError), closing(HTTPConnection("127.0.0.1", daemon.port, timeout=patience)) as connection:
        connection.request("GET", target)
        with connection.getresponse() as answer:
            while answer.read(1 << 20):
                pass
            return answer.status
    return 0


def _attack(daemon: Daemon, target: str, patience: float) -> tuple[Sequence[int], float]:
    """Return the statuses of several readers, and the longest time that the daemon's health took meanwhile."""
    with ThreadPoolExecutor(READERS) as readers:
        asked, longest = [readers.submit(_asked, daemon, target, patience) for _ in range(READERS)], 0.0
        while not all(each.done() for each in asked):
            begun = time.monotonic()
            assert daemon.ask("GET", "/health_check") == (200, b"")
            longest = max(longest, time.monotonic() - begun)
            time.sleep(0.1)
        return [each.result() for each in asked], longest


def test_readers_of_all_that_can_be_named_leave_nothing_behind(daemon: Daemon) -> None:
    for target in TARGETS:
        for patience in (PATIENCE, 2):  # some answers take many minutes
            daemon.forget_peak()
            statuses, longest = _attack(daemon, target, patience)
            peak = daemon.peak()
            print(f"\n{target[:80]}: {statuses}, peak {peak} MiB, health {longest:.2f} s")  # noqa: T201 asked for
            assert set(statuses) <= {0, 200, 400, 503}, target
            assert peak <= MOST_MEMORY, target
            assert _rests(daemon, REST), target
    assert "Traceback" not in daemon.text()
