"""``auditord status`` on a terminal of 80 columns: no line is longer, and no time is broken, however long names are."""

import re
import subprocess
import sys
from typing import Final

from tests.terminal import on_terminal

SHOW: Final = """
import json, sys
from auditord.cli.status import print_status
print_status(json.loads(sys.argv[1]))
"""
LONG: Final = "collector_of_the_second_cluster_in_the_old_building"
STATE: Final = """{
  "running": true, "status": "degraded", "state_dir": "/var/lib/auditord/with/a/rather/long/path/to/its/state/folder",
  "errors": ["the record store does not answer: connection to server at 192.0.2.7, port 5432 failed: timeout expired"],
  "remarks": [], "records": 12345678, "turns": [], "gaps": {}, "backups": {},
  "queues": {"NAME": {"entries": 123456, "oldest": "2026-01-01T00:00:00Z"}},
  "senders": [{"task": "NAME", "enabled": true, "error": "it answers 503 Service Unavailable", "failures": 12}],
  "quarantine": {"NAME (convert)": 17},
  "instances": [
    {"task": "NAME", "kind": "slurm_epilog", "enabled": true, "running": false, "last_run": "2026-01-01T00:00:00Z",
     "last_success": "2026-01-01T00:00:00Z", "next_run": "2999-01-01T00:00:00Z", "records": 1234567,
     "failures": 1, "remarks": [],
     "error": "sacct: error: slurm_persist_conn_open_without_init: failed to open a connection"},
    {"task": "short", "kind": "backup", "enabled": false, "running": false, "last_run": null, "last_success": null,
     "next_run": null, "records": 0, "error": null, "failures": 0, "remarks": []}
  ]
}""".replace("NAME", LONG)


def shown(columns: int) -> str:
    """The text on a terminal that is so wide."""
    return re.sub(r"\x1b\[[\d;]*m", "", on_terminal([sys.executable, "-c", SHOW, STATE], columns=columns)[0])


def test_it_fits_into_80_columns() -> None:
    text = shown(80)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert len(re.findall(r"\d+ d ago\b", text)) == 3
    words = " ".join(text.split())
    assert all(each in words for each in ("never", "not enabled", "1234567", "12345678", "1 failure: sacct"))


def test_in_a_pipe_a_line_is_a_line() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW, STATE], capture_output=True, text=True, check=True, timeout=60)
    assert (
        f"problem     {LONG}: 1 failure: sacct: error: slurm_persist_conn_open_without_init: failed to open"
        in done.stdout
    )
    assert re.search(rf"^{LONG} +slurm_epilog +\d+ d ago", done.stdout, re.MULTILINE)
