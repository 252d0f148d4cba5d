"""``auditord status --watch`` shows the state again and again until Ctrl-C, also after a daemon has gone."""

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from auditord.cli import auditord, status

STATE: dict[str, Any] = {  # Any: JSON
    "running": True, "status": "ok", "state_dir": "/var/lib/auditord", "records": 7, "queues": {}, "senders": [],
    "turns": [], "gaps": {}, "quarantine": {}, "instances": [],
}  # fmt: skip


def test_it_looks_again_until_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Iterator[dict[str, Any]] = iter([STATE, {**STATE, "running": False, "records": 8}])  # Any: JSON
    waited = list[float]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(status, "_look_here", lambda: next(looks))
    monkeypatch.setattr("auditord.cli.status.time.sleep", sleep)
    done = CliRunner().invoke(auditord, ["status", "--watch"])
    first, second = done.output.split("daemon      ")[1:]
    assert first.startswith("running (ok), state in /var/lib/auditord\nrecords     7\n")
    assert second.startswith("not running, state in /var/lib/auditord\nrecords     8\n")
    assert (done.exit_code, "Aborted!" in done.output) == (0, False)
