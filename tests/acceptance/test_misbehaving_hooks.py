"""The real daemon beside a hook module that blocks the loop, floods the log, keeps threads and takes memory.

It names the module and serves again as soon as it can.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from tests import third_party

pytestmark = pytest.mark.slow


THIRD_PARTY: Final = """
import logging
import threading
import time
from auditord_hookspecs import *

OTHERS = logging.getLogger("thirdparties.library")
KEPT = []


def wait():
    threading.Event().wait()


async def collect(config, context):
    for number in range(5_000):
        OTHERS.warning("flooding %d", number)
    for _ in range(100):
        threading.Thread(target=wait, daemon=True).start()
    KEPT.append(bytearray(700 << 20))
    time.sleep(8)
    yield Batch(quarantined=[Quarantined("one", {}, "has no end")], checkpoint=1)  # so that its run is in the log


@hookimpl
def auditord_collectors():
    yield CollectorKind(name="thirdparty", config=RunConfig, collect=collect)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    third_party.install(tmp_path, THIRD_PARTY)
    file = tmp_path / "auditord.yml"
    collectors = {"worst": {"kind": "thirdparty", "interval": "1d"}}
    listen = ["127.0.0.1:0"]
    file.write_text(json.dumps({"state_dir": f"{tmp_path}/state", "api": {"listen": listen}, "collectors": collectors}))
    return file


def test_it_is_named_for_each_of_its_deeds_and_the_daemon_goes_on(config: Path) -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-m", "auditord", "run", "--config", str(config)],
        env={**os.environ, "PYTHONPATH": str(config.parent)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert daemon.stderr is not None
    expected = {
        "blocks": r"hook module auditord_thirdparty \(entry point thirdparty of auditord-thirdparty 4\.5\.6\)",
        "keeps threads": r"\d\d+ threads are running, most of them in code of auditord_thirdparty",
        "floods": "log lines of thirdparties are left out",
        "grows": "MiB; running: worst",
        "goes on": "the event loop runs again",
        "its run ends": "worst: 0 records",
    }
    url, log = "", ""
    try:
        while missing := [text for text in expected.values() if not re.search(text, log)]:
            line = daemon.stderr.readline()
            assert line, f"it ended without {missing}:\n{log[-3_000:]}"
            log += line
            url = next((word for word in line.split() if word.startswith("http://")), url)
        with urlopen(f"{url}/health_check", timeout=60) as answer:  # noqa: S310 our own
            assert answer.status == 200
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.stderr.read()
        daemon.wait()
        daemon.stderr.close()
    assert log.count("flooding") <= 1_000
