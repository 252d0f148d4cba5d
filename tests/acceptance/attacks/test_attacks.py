"""Clients that take all they can get: the daemon stays small, and everybody else is served.

``AUDITORD_ATTACK_SECONDS`` says for how long each attack goes on (10 by default), and ``-s`` shows what was measured.
"""

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import pytest

from tests.acceptance.attacks.attacking import ATTACKS
from tests.acceptance.attacks.served import Daemon, under_attack

SECONDS: Final = float(os.environ.get("AUDITORD_ATTACK_SECONDS", "10"))
MOST_MEMORY: Final = 400
"""MiB."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + 2 * SECONDS)]


@pytest.fixture(params=["sqlite", "postgres"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Daemon, None, None]:
    """A daemon with some records."""
    url = None
    if request.param == "postgres":
        make: Callable[[], str] = request.getfixturevalue("new_postgres_url")
        url = make()
    with Daemon(tmp_path, url).running() as running:
        yield running


@pytest.mark.parametrize("attack", ATTACKS)
def test_nobody_takes_it_down(daemon: Daemon, attack: str) -> None:
    peak, clients, attacker = under_attack(daemon, attack, SECONDS)
    table = "; ".join(map(str, clients.values()))
    print(f"\n{attack}: peak {peak} MiB; {table}; attacker: {attacker}")  # noqa: T201 the figures are asked for
    assert "Traceback" not in daemon.text()
    for client in clients.values():
        assert client.answered, client
        assert not client.failed, client
    assert peak < MOST_MEMORY
