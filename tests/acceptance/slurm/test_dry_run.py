"""``auditord collect --dry-run`` as a process; no Slurm is needed."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from auditord_builtin.slurm.demo import replay
from tests.acceptance.slurm.daemon import PROGRAM, Site
from tests.terminal import on_terminal


def test_a_reader_that_stops_reading_is_told_of_no_error(tmp_path: Path) -> None:
    options: dict[str, Any] = {**replay(), "meta": []}
    site = Site(tmp_path, **options)
    command = (PROGRAM, "collect", "slurm", "--dry-run", "--config", site.file)
    reading, writing = os.pipe()
    os.close(reading)  # as with "| head", once it has seen enough
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=site.environment)
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == f"dry run by the configuration in {site.file}\n"
    assert not list(tmp_path.rglob("*.db"))


def test_beside_a_bar_on_a_terminal_the_records_go_where_they_are_sent_with_their_pseudonyms(tmp_path: Path) -> None:
    """``> file`` on a terminal: whole lines, each of a record as it would be kept, and none on the screen."""
    options: dict[str, Any] = {**replay(), "meta": []}
    site = Site(tmp_path, **options)
    transforms = {"pseudonyms": {"kind": "pseudonyms", "key": "sesame-open-the-door"}}
    site.file.write_text(json.dumps(json.loads(site.file.read_text()) | {"transforms": transforms}))
    command = [str(PROGRAM), "collect", "slurm", "--dry-run", "--config", str(site.file)]
    shown, written = on_terminal(command, only_errors=True)
    records = [json.loads(line) for line in written.splitlines()]
    users = {user for record in records for user in record["meta"]["user_id"]}
    assert (len(records), {user[:2] for user in users}) == (75, {"u-"})
    assert ("75 records" in shown, "record_id" in shown) == (True, False)


def test_on_the_terminal_they_are_whole_lines_without_a_bar_between(tmp_path: Path) -> None:
    options: dict[str, Any] = {**replay(), "meta": []}
    site = Site(tmp_path, **options)
    shown, _ = on_terminal([str(PROGRAM), "collect", "slurm", "--dry-run", "--config", str(site.file)])
    announced, *lines, last = shown.splitlines()
    assert announced == f"dry run by the configuration in {site.file}"
    assert [json.loads(line).keys() >= {"record_id"} for line in lines] == [True] * 75
    assert last.startswith("slurm: 75 records")
