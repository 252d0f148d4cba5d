"""The watchdog names the hook module that harms the process."""

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import anyio
import anyio.lowlevel
import pytest

from auditord import watchdog
from auditord.hooks import HookModule
from auditord.logs import FloodFilter
from auditord.watchdog import Owners, Watchdog, watched_process

MODULES = [
    HookModule("printers", "auditord_printers", "auditord-printers", "1"),
    HookModule("slurm", "auditord_builtin.slurm", "auditord", "1"),
    HookModule("files", "auditord_builtin.files", "auditord", "1"),
]


def module(name: str, source: str, folder: Path) -> ModuleType:
    """A module of this name that was never imported."""
    found = ModuleType(name)
    found.__dict__["time"] = time
    exec(compile(source, folder / f"{name}.py", "exec"), found.__dict__)  # noqa: S102 the test's own text
    return found


def nobody() -> Sequence[str]:
    return ()


@pytest.mark.anyio
async def test_who_blocks_the_loop_is_named_and_the_daemon_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = "def collect(reported):\n    while not reported():\n        time.sleep(0.01)\n"
    third_party = module("auditord_printers.pages", source, tmp_path)
    with watched_process(MODULES, nobody, patience=1.5):
        await anyio.lowlevel.checkpoint()
        third_party.collect(lambda: "has blocked" in caplog.text)
        with anyio.fail_after(60):
            while "turns again" not in caplog.text:  # noqa: ASYNC110 a thread writes it
                await anyio.sleep(0.01)
    assert "hook module auditord_printers (entry point printers of auditord-printers 1)" in caplog.text
    assert "auditord_printers.pages.py:3 in collect" in caplog.text


def test_code_belongs_to_the_module_that_is_innermost() -> None:
    owners = Owners(MODULES)
    for name, expected in (
        ("auditord_printers", "auditord_printers"),
        ("auditord_printers.deep.down", "auditord_printers"),
        ("auditord_builtin.slurm.query", "auditord_builtin.slurm"),
        ("auditord_builtin.local", None),
        ("json.decoder", None),
    ):
        third_party = module(name, "import sys\ndef frame():\n    return sys._getframe()\n", Path("/"))
        found = owners.owner(third_party.frame())
        assert (None if found is None else found[0].module) == expected


def test_threads_that_are_left_behind_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "MOST_THREADS", 5)
    third_party, end = module("auditord_printers", "def work(end):\n    end.wait()\n", tmp_path), threading.Event()
    threads = [threading.Thread(target=third_party.work, args=(end,)) for _ in range(20)]
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
    assert caplog.text.count("20 threads are at work in code of auditord_printers") == 1


def test_growth_is_reported_with_who_runs(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([100 << 20, 400 << 20, 10_000 << 20, 10_100 << 20])
    monkeypatch.setattr(watchdog, "_resident", lambda: next(sizes))
    looking = Watchdog(Owners(MODULES), lambda: ["printers"], threading.get_ident())
    for _ in range(3):
        looking.look_at_memory()
    assert caplog.messages == [
        "the process has grown from 100 to 10000 MiB; running: printers (the unit's MemoryMax= is a limit)"
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
