"""A daemon of its own with a Slurm collector: the installed program, its commands, its files."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.acceptance.daemon_process import PATIENCE, DaemonProcess, wait_until
from tests.json_objects import objects
from tests.slurm_accounting import META

PROGRAM: Final = Path(sys.executable).with_name("auditord")


class Site(DaemonProcess):
    """A state folder, its configuration, and the daemons and commands that work on it.

    Args:
        path: an empty folder.
        store: the URL of the record store in PostgreSQL; None for the embedded one.
        options: those of the collector, which is named ``slurm``.
    """

    def __init__(self, path: Path, *, store: str | None = None, **options: Any) -> None:  # Any: YAML
        self.path = path
        self.store = store
        self.state = path / "state"
        self.file = path / "auditord.yml"
        self._former_runs = 0
        # Far from UTC, and with summer time: nothing may depend on the zone of the host.
        environment = {"PATH": os.environ["PATH"], "HOME": str(path), "TZ": "America/St_Johns"}
        super().__init__(path / "log", environment)
        self.configure(**options)

    def configure(self, **options: Any) -> None:  # Any: YAML
        """Write the configuration anew."""
        collector = {"kind": "slurm", "interval": "1h", "lag": "0s", "meta": META, **options}
        document = {
            "state_dir": str(self.state),
            "api": {"listen": ["127.0.0.1:0"]},
            "metrics": {"database": {"interval": "200ms"}},
            "collectors": {"slurm": collector},
        }
        self.write(document)

    def write(self, document: dict[str, Any]) -> None:  # Any: YAML
        """Let this be the configuration, with the record store."""
        store = {} if self.store is None else {"store": {"url": self.store}}
        self.file.write_text(json.dumps({**document, **store}))

    def lose_the_store(self) -> None:
        """Delete all records, and all that is kept beside them."""
        for path in self.state.glob("records.db*"):
            path.unlink()
        if self.store is not None:
            with psycopg.connect(self.store, autocommit=True) as connection:
                connection.execute("DROP SCHEMA auditord CASCADE")

    def daemon(self) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        """``auditord run``; killed at the end if it is still there."""
        self._former_runs = self._last_run()
        return self.running((PROGRAM, "run", "--config", self.file))

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """``auditord WORDS…`` under this configuration."""
        return self.run((PROGRAM, *words, "--config", self.file))

    def fetch(self, path: str) -> str:
        """The present daemon's answer."""
        with urllib.request.urlopen(f"{self.url()}{path}", timeout=PATIENCE) as answer:  # noqa: S310 our own server
            text: str = answer.read().decode()
            return text

    def served(self) -> list[Any]:  # Any: JSON
        """All records, from ``GET /records``."""
        return objects(self.fetch("/records"))

    def metric(self, name: str, **labels: str) -> float | None:
        """A figure of ``/metrics``; None if it is not there."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        for found in re.finditer(rf"^{name}(?:{{(.*)}})? (\S+)$", self.fetch("/metrics"), re.MULTILINE):
            if wanted <= set((found[1] or "").split(",")):
                return float(found[2])
        return None

    def status(self) -> Any:  # Any: JSON
        """``auditord status``."""
        return json.loads(self.command("status", "--output", "json").stdout)

    def rows(self, query: str) -> list[Any]:  # Any: rows of SQLite
        """The rows of a query of the spool; none while it is not there or not set up."""
        file = self.state / "spool.db"
        if not file.exists():
            return []
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)) as connection:
            try:
                return connection.execute(query).fetchall()
            except sqlite3.OperationalError:
                return []

    def checkpoint(self) -> Any:  # Any: JSON
        """The collector's checkpoint; None before its first batch."""
        rows = self.rows("SELECT value FROM checkpoint")
        return json.loads(rows[0][0]) if rows else None

    def runs(self) -> list[tuple[str | None, int]]:
        """Error and number of records of the last finished run, if there was one."""
        return self.rows("SELECT error, records FROM run WHERE task = 'slurm' ORDER BY number DESC LIMIT 1")

    def _last_run(self) -> int:
        """The number of the collector's last finished run; 0 before its first one."""
        rows = self.rows("SELECT max(number) FROM run WHERE task = 'slurm'")
        return (rows[0][0] or 0) if rows else 0

    def delivered(self) -> bool:
        """Tell if nothing waits in the send-queue."""
        return self.rows("SELECT count(*) FROM queue") == [(0,)]

    def wait_for_run(self) -> None:
        """Wait until the present daemon's first run has gone well and all that it made is delivered."""
        wait_until(lambda: self._last_run() > self._former_runs, self.last_words)
        assert "run failed" not in self.text(), self.last_words()
        wait_until(self.delivered, self.last_words)
