"""The daemon keeps roll-ups by the labels that its page offers."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from auditord.testing.daemon import PATIENCE, StartDaemon


def rolled_keys(path: Path) -> set[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return {key for (key,) in connection.execute("SELECT meta_key FROM rolled_keys WHERE meta_key IS NOT NULL")}


@pytest.mark.parametrize("labels", [["VO", "partition"], ["site_id"]])
def test_labels_of_the_page_are_rolled_up(auditord_daemon: StartDaemon, tmp_path: Path, labels: list[str]) -> None:
    path = tmp_path / "kept.db"
    auditord_daemon({"ui": {"labels": labels}, "store": {"url": f"sqlite://{path}"}})
    wanted, until = (
        {"", *(label for label in labels if label != "site_id")},
        time.monotonic() + PATIENCE.total_seconds(),
    )
    while rolled_keys(path) != wanted and time.monotonic() < until:
        time.sleep(0.02)
    assert rolled_keys(path) == wanted
