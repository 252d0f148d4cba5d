"""The real daemon over folders, killed at random moments: notes of jobs whose scontrol a script plays, and files."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from auditord.testing import make_record
from auditord_hookspecs.wire import encode_record
from tests.acceptance.daemon_process import wait_until
from tests.acceptance.slurm.daemon import Site

SCRIPT: Final = Path(sys.executable).with_name("auditord-epilog")
RECORDED: Final = Path(__file__).parents[2] / "builtin/slurm_epilog/recorded/completed.txt"


class Folder(Site):
    """A state folder with one collector of any kind."""

    def configure(self, **options: Any) -> None:  # Any: YAML
        """Write the configuration anew."""
        document = {
            "state_dir": str(self.state),
            "api": {"listen": ["127.0.0.1:0"]},
            "collectors": {"it": {"interval": "100ms", **options}},
        }
        self.file.write_text(json.dumps(document))

    def survive(self, kills: int, meanwhile: Callable[[int], None]) -> None:
        """Start and kill the daemon; something happens each time."""
        chance = random.Random(1)  # noqa: S311 moments, no secrets
        for number in range(kills):
            with self.daemon() as process:
                meanwhile(number)
                self.url()
                time.sleep(chance.uniform(0, 0.4))
                process.kill()


def fake_scontrol(folder: Path, spool: Path) -> str:
    """Answers about any job as the recorded one did, and that it ended when it was noted."""
    path = folder / "scontrol"
    path.write_text(
        "#!/bin/sh\n"
        f"at=$(stat -c %Y {spool}/$3.*.job)\n"
        'sed "s/JobId=251/JobId=$3/; s/StartTime=[0-9]*/StartTime=$((at - 9))/; s/EndTime=[0-9]*/EndTime=$at/" '
        f"{RECORDED}\n"
    )
    path.chmod(0o755)
    return str(path)


def test_killed_at_any_moment_every_noted_job_counts_once(tmp_path: Path) -> None:
    spool, jobs = tmp_path / "spool", 40
    spool.mkdir()
    scontrol = fake_scontrol(tmp_path, spool)
    site = Folder(tmp_path, kind="slurm_epilog", spool=str(spool), scontrol=[scontrol], squeue=[], sacct=["false"])

    def note(number: int) -> None:
        for job in range(number * jobs + 1, (number + 1) * jobs + 1):
            subprocess.run([SCRIPT, spool], env={"SLURM_JOB_ID": str(job)}, check=True, timeout=30)

    site.survive(5, note)
    with site.daemon():
        wait_until(lambda: list(spool.iterdir()) == [], site.last_words)
        wait_until(site.delivered, site.last_words)
        counted = Counter(record["record_id"] for record in site.served())
    assert counted == Counter({f"slurm-{job}": 1 for job in range(1, 5 * jobs + 1)})


def test_killed_at_any_moment_every_line_of_every_file_counts_once(tmp_path: Path) -> None:
    folder, lines = tmp_path / "drop", 4_000
    folder.mkdir()
    site = Folder(tmp_path, kind="files", folder=str(folder), settle="0s")

    def drop(number: int) -> None:
        names = [f"{number}-{line}" for line in range(lines)]
        part = folder / f"{number}.ndjson.part"
        part.write_bytes(b"".join(encode_record(make_record(name)) + b"\n" for name in names) + b"poison\n")
        part.rename(folder / f"{number}.ndjson")

    site.survive(5, drop)
    with site.daemon():
        wait_until(lambda: not list(folder.glob("*.ndjson")), site.last_words)
        wait_until(site.delivered, site.last_words)
        counted = Counter(record["record_id"] for record in site.served())
    assert counted == Counter({f"{number}-{line}": 1 for number in range(5) for line in range(lines)})
    assert [path.read_text() for path in sorted((site.state / "instances/it/quarantine").glob("*.ndjson"))] == [
        "poison\n"
    ] * 5
    assert len(site.rows("SELECT 1 FROM quarantine")) == 5


def test_a_dry_run_and_a_single_run_of_files(tmp_path: Path) -> None:
    folder = tmp_path / "drop"
    folder.mkdir()
    site = Folder(tmp_path, kind="files", folder=str(folder), settle="0s")
    (folder / "a.ndjson").write_bytes(encode_record(make_record("a")) + b"\nbad\n")
    dry = site.command("collect", "it", "--dry-run")
    assert (dry.returncode, json.loads(dry.stdout)["record_id"]) == (0, "a")
    assert (folder / "a.ndjson").exists()
    assert site.command("collect", "it", "--once").returncode == 0
    assert (site.state / "instances/it/done/a.ndjson").exists()
    listed = json.loads(site.command("quarantine", "list", "--output", "json").stdout)
    assert [entry["source_id"].rpartition(":")[0] for entry in listed] == ["a.ndjson:2"]
