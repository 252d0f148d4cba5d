"""``auditord collect --dry-run`` as a process; no Slurm is needed."""

import os
import subprocess
from pathlib import Path
from typing import Any

from auditord_builtin.slurm.demo import replay
from tests.acceptance.slurm.daemon import PROGRAM, Site


def test_a_reader_that_stops_reading_is_told_of_no_error(tmp_path: Path) -> None:
    options: dict[str, Any] = {**replay(), "meta": []}
    site = Site(tmp_path, **options)
    command = (PROGRAM, "collect", "slurm", "--dry-run", "--config", site.file)
    reading, writing = os.pipe()
    os.close(reading)  # as with "| head", once it has seen enough
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=site.environment)
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == ""
    assert site.rows("SELECT 1 FROM queue UNION SELECT 1 FROM checkpoint") == []
