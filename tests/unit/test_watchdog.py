"""The watchdog names the hook module that harms the process."""

import logging
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import anyio
import anyio.lowlevel
import pytest

from auditord import watchdog
from auditord.hooks import HookModule
from auditord.logs import FloodFilter
from auditord.watchdog import CodeLine, Owners, Watchdog, watch_process

MODULES = [
    HookModule("printers", "auditord_printers", "auditord-printers", "1"),
    HookModule("slurm", "auditord_builtin.slurm", "auditord", "1"),
    HookModule("files", "auditord_builtin.files", "auditord", "1"),
]


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of a package that is installed, whose functions wait for something."""
    package = tmp_path / "Päckchen" / "auditord_printers"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "pages.py").write_text(
        "import time\n\ndef collect(reported):\n    while not reported():\n        time.sleep(0.01)\n\n"
        "def work(end):\n    end.wait()\n"
    )
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    try:
        return import_module("auditord_printers.pages")
    finally:
        for name in ("auditord_printers", "auditord_printers.pages"):
            monkeypatch.setitem(sys.modules, name, sys.modules.pop(name))


def nobody() -> Sequence[str]:
    return ()


@pytest.mark.anyio
async def test_who_blocks_the_loop_is_named_and_the_daemon_goes_on(
    third_party: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    with watch_process(MODULES, nobody, patience=1.5):
        await anyio.lowlevel.checkpoint()
        third_party.collect(lambda: "has blocked" in caplog.text)
        with anyio.fail_after(60):
            while "runs again" not in caplog.text:  # noqa: ASYNC110 a thread writes it
                await anyio.sleep(0.01)
    assert "hook module auditord_printers (entry point printers of auditord-printers 1)" in caplog.text
    assert "auditord_printers/pages.py:5 in collect)" in caplog.text


def test_code_belongs_to_the_module_that_is_innermost(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, values in (
        ("auditord_printers", {"__path__": ["/site/auditord_printers"], "__file__": "/site/auditord_printers/p.py"}),
        ("auditord_builtin", {"__path__": ["/site/auditord_builtin"]}),
        ("auditord_builtin.slurm", {"__path__": ["/site/auditord_builtin/slurm"]}),
        ("auditord_builtin.files", {"__file__": "/site/auditord_builtin/files.py"}),
    ):
        fake = ModuleType(name)
        fake.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, fake)
    owners = Owners(MODULES)
    for file, expected in (
        ("auditord_printers/__init__.py", "auditord_printers"),
        ("auditord_printers/deep/down.py", "auditord_printers"),
        ("auditord_printers_of_others/down.py", None),
        ("auditord_builtin/slurm/query.py", "auditord_builtin.slurm"),
        ("auditord_builtin/files.py", "auditord_builtin.files"),
        ("auditord_builtin/local.py", None),
    ):
        found = owners.owner([CodeLine("/usr/lib/json.py", "1", "load"), CodeLine(f"/site/{file}", "5", "read")])
        assert (None if found is None else found[0].module) == expected


def test_threads_that_are_left_behind_are_reported(
    third_party: ModuleType, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "MOST_THREADS", 5)
    end = threading.Event()
    threads = [threading.Thread(target=third_party.work, args=(end,)) for _ in range(120)]
    for thread in threads:
        thread.start()
    try:
        looking = Watchdog(Owners(MODULES), nobody, threading.get_ident())
        looking.look_at_threads()
        looking.look_at_threads()
    finally:
        end.set()
        for thread in threads:
            thread.join()
    (message,) = caplog.messages
    assert int(message.split()[0]) > 120
    assert "threads are running, most of them in code of auditord_printers" in message


def test_growth_is_reported_with_who_runs(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([100 << 20, 400 << 20, 10_000 << 20, 10_100 << 20])
    monkeypatch.setattr(watchdog, "_resident", lambda: next(sizes))
    looking = Watchdog(Owners(MODULES), lambda: ["printers"], threading.get_ident())
    for _ in range(3):
        looking.look_at_memory()
    assert caplog.messages == [
        "the process has grown from 100 to 10000 MiB; running: printers (MemoryMax= of the systemd unit limits it)"
    ]


def test_a_flood_of_log_lines_is_cut_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    moment = [0.0]
    flood = FloodFilter(lambda: moment[0], most=3, seconds=10)
    written = [flood.filter(_line("third_party.deep", number)) for number in range(10)]
    assert written == [True] * 3 + [False] * 7
    assert all(flood.filter(_line("auditord.web", number)) for number in range(10))
    moment[0] = 11
    assert flood.filter(_line("third_party", 0))
    assert caplog.messages == [
        "log lines of third_party are left out: more than 3 within 10 s",
        "7 log lines of third_party were left out",
    ]


def _line(name: str, number: int) -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, __file__, 1, "line %d", (number,), None)
