"""The daemon keeps roll-ups by the labels that its page offers, by its group, and by how jobs ended."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from auditord.testing.daemon import PATIENCE, StartDaemon


def rolled_keys(path: Path) -> set[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return {key for (key,) in connection.execute("SELECT meta_key FROM rolled_keys WHERE meta_key IS NOT NULL")}


def test_labels_of_the_page_are_rolled_up(auditord_daemon: StartDaemon, tmp_path: Path) -> None:
    path, until = tmp_path / "kept.db", time.monotonic() + PATIENCE.total_seconds()
    auditord_daemon(
        {
            "ui": {"labels": ["VO", "site_id", "partition"]},
            "labels": {"group": "account"},
            "store": {"url": f"sqlite://{path}"},
        }
    )
    expected = {"VO", "partition", "users by account", "users by outcome"}
    while rolled_keys(path) != expected and time.monotonic() < until:
        time.sleep(0.02)
    assert rolled_keys(path) == expected
