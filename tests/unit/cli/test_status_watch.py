"""``auditord status --watch`` shows the state again and again until Ctrl-C, also after a daemon has gone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from auditord.cli import auditord, status
from auditord.errors import ConfigurationError, DaemonError

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

    def look(_: object, url: str | None) -> dict[str, Any]:  # Any: JSON
        assert url is None
        return next(looks)

    monkeypatch.setattr(status, "run_async", look)
    monkeypatch.setattr("auditord.cli.status.time.sleep", sleep)
    done = CliRunner().invoke(auditord, ["status", "--watch"])
    first, second = done.output.split("daemon      ")[1:]
    assert first.startswith("running (ok), state in /var/lib/auditord\nrecords     7\n")
    assert second.startswith("not running, state in /var/lib/auditord\nrecords     8\n")
    assert (done.exit_code, "Aborted!" in done.output) == (0, False)


def test_it_waits_for_a_daemon_that_is_away_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[dict[str, Any] | DaemonError] = iter(
        [STATE, DaemonError("nobody answers"), {**STATE, "records": 8}]
    )

    def ask(_: object, url: str | None) -> dict[str, Any]:  # Any: JSON
        assert url == "http://127.0.0.1:1"
        answer = next(answers, KeyboardInterrupt())
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(status, "run_async", ask)
    monkeypatch.setattr(status, "_BETWEEN_LOOKS", 0.0)
    done = CliRunner().invoke(auditord, ["status", "--watch", "--url", "http://127.0.0.1:1"])
    before, away, after = done.output.partition("nobody answers\nTrying again every 0 s, until Ctrl-C.\n")
    assert ("records     7" in before, bool(away), "records     8" in after, done.exit_code) == (True, True, True, 0)


def test_all_daemons_are_watched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_: float) -> None:
        raise KeyboardInterrupt

    def look(_: object) -> list[dict[str, Any]]:  # Any: JSON
        return []

    monkeypatch.setattr(status, "run_async", look)
    monkeypatch.setattr("auditord.cli.status.time.sleep", sleep)
    done = CliRunner().invoke(auditord, ["status", "--watch", "--all"])
    assert (done.exit_code, "No daemon has registered itself" in done.output) == (0, True)


def test_a_configuration_that_cannot_be_used_ends_it(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("store: 7\n")
    done = CliRunner().invoke(auditord, ["status", "--watch", "--config", str(tmp_path / "a.yml")])
    assert isinstance(done.exception, ConfigurationError)


@pytest.mark.parametrize("others", [["--watch", "--output", "json"], ["--all", "--url", "http://127.0.0.1:1"]])
def test_what_does_not_go_together_is_refused(others: list[str]) -> None:
    done = CliRunner().invoke(auditord, ["status", *others])
    assert (done.exit_code, "out\n" in done.output) == (2, True)
