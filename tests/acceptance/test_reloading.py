"""The real process, reloaded by SIGHUP and killed in the middle of its runs: nothing is lost, nothing counted twice."""

import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.daemon_process import wait_until
from tests.acceptance.test_daemon import COUNT, Folder, all_are_there_once


def configure(folder: Folder, batch: int, count: int | str = COUNT) -> None:
    numbers = {"kind": "numbers", "interval": "1h", "count": count, "batch": batch}
    folder.configure(shutdown={"grace": "20ms"}, collectors={"numbers": numbers})


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    configure(folder, 80)
    return folder


def test_reloads_and_kills_lose_and_double_nothing(folder: Folder) -> None:
    for target, kill_at_once in ((600, False), (1_000, True)):
        with folder.daemon() as process:
            wait_until(partial(folder.has_read, target), folder.text)
            configure(folder, 100 if target == 600 else 120)
            process.send_signal(signal.SIGHUP)
            if not kill_at_once:
                wait_until(lambda: "reloaded: collectors.numbers" in folder.text(), folder.text)
                wait_until(partial(folder.has_read, target + 200), folder.text)
            process.kill()
    assert 1_000 <= folder.checkpoint() < COUNT
    all_are_there_once(folder)


def test_a_command_compares_and_reloads_and_a_fault_changes_nothing(folder: Folder) -> None:
    config = [sys.executable, "-m", "auditord", "config"]
    option: list[str | Path] = ["--config", folder.path / "plain.yml"]
    plain = f"state_dir: {folder.state}\napi: {{listen: ['127.0.0.1:0']}}\n"
    reports = "plugins: {{gaps: {{kind: backup, folder: {}, interval: 1d}}}}\n"
    (folder.path / "plain.yml").write_text(plain)
    with folder.running([sys.executable, "-m", "auditord", "run", *option]) as process:
        folder.url()
        (folder.path / "plain.yml").write_text(plain + reports.format(folder.path / "copies"))
        compared = folder.run([*config, "diff", *option])
        copies = f'plugins.gaps.folder: "{folder.path / "copies"}"'
        said = ["plugins.gaps: new (kind backup)", copies, 'plugins.gaps.interval: "1d"']
        *differences, first = compared.stdout.splitlines()
        assert (compared.returncode, differences) == (1, said)
        assert first.startswith("plugins.gaps: first run 20")
        assert "reloaded: plugins.gaps" in folder.run([*config, "reload", *option]).stdout
        (folder.path / "plain.yml").write_text(plain + "logging: {level: debug}\n")
        refused = folder.run([*config, "reload", *option])
        assert refused.returncode == 1
        assert "plugins.gaps: removed (kind backup)" in refused.stdout
        assert "plugins.gaps" not in refused.stderr
        assert "nothing was reloaded: restart the daemon to change logging" in refused.stderr
        (folder.path / "plain.yml").write_text(plain + "plugins: 3\n")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "not reloaded: " in folder.text(), folder.text)
        process.terminate()
        assert process.wait(60) == 0
