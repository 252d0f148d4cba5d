"""Options that select nothing are named: columns that no sacct has, and entries that no list of a run has."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.conversion import SelectionCheck
from auditord_builtin.slurm.kinds import SLURM
from auditord_builtin.slurm.runs import Run

SACCT: Final = Path(__file__).parents[2] / "many_jobs_sacct.py"
HELPFORMAT: Final = Path(__file__).with_name("helpformat-22.05.txt")
BEGIN: Final = datetime(2026, 3, 1, tzinfo=UTC)
MEMORY: Final = {"name": "Memory", "key": "AllocTRES", "sub_key": "memm", "key_type": "IntegerMega", "optional": True}
LISTED: Final = "billing=4,cpu=4,mem=4096M,node=1"


def config(**options: Any) -> SlurmConfig:
    return SlurmConfig.model_validate({"sites": [{"name": "A"}], **options})


def look(rule: dict[str, Any], jobs: Sequence[str], used: Sequence[str] = ()) -> list[str]:
    others = [{"name": f"Used{number}", "key": "AllocTRES", "sub_key": name} for number, name in enumerate(used)]
    check = SelectionCheck(config(components=[rule, *others]).components)
    half = len(jobs) // 2
    runs = [Run({"AllocTRES": text, "Partition": "short"}, ()) for text in jobs]
    first, second = list(check.look_at(runs[:half])), list(check.look_at(runs[half:]))
    return [each.reason for each in second or first]


@pytest.mark.parametrize("amount", [{"optional": True}, {"default_value": 0}, {"key_allow_empty": True}])
def test_a_misspelled_entry_is_named_once_many_rows_lack_it(amount: dict[str, Any]) -> None:
    rule = {"name": "Memory", "key": "AllocTRES", "sub_key": "memm", "key_type": "IntegerMega", **amount}
    told = "components.0: sub_key 'memm' is in none of 30 rows; AllocTRES has billing, cpu, mem, node"
    assert look(rule, [LISTED] * 30) == [told]
    assert not look(rule, [LISTED] * 19)
    assert not look(rule, [""] * 30)
    assert not look(rule, [*[LISTED] * 29, "memm=1M"])
    assert not look({**rule, "only_if": {"key": "Partition", "matches": "^long$"}}, [LISTED] * 30)


def test_resources_that_most_jobs_lack_are_only_named_if_jobs_have_unused_ones_of_their_sort() -> None:
    wanted = {"name": "GPU", "key": "AllocTRES", "sub_key": "gres/gpuu", "optional": True}
    rule = {**wanted, "sub_key": "gres/gpu:a100"}
    with_others = f"{LISTED},gres/gpu:h100=1,gres/gpu=1"
    assert not look(rule, [LISTED] * 30)
    assert look(rule, [with_others] * 30)
    assert not look(rule, [with_others] * 30, used=["gres/gpu:h100", "gres/gpu"])
    [told] = look(wanted, [*[LISTED] * 29, with_others])
    assert told.startswith("components.0: sub_key 'gres/gpuu' is in none of 30 rows; AllocTRES has billing, cpu, gres")
    for known in ("gres/gpu", "mem", "energy"):  # a cluster need not have them
        assert not look({**wanted, "sub_key": known}, ["cpu=4"] * 30)


def test_a_dry_run_tells_what_no_record_has(tmp_path: Path) -> None:
    sacct = [sys.executable, str(SACCT), "75", f"{BEGIN.timestamp():.0f}", "259200"]
    slurm = {"kind": "slurm", "sites": [{"name": "A"}], "sacct": sacct}
    cores = {"name": "Cores", "key": "NCPUS"}
    section = {"state_dir": str(tmp_path), "collectors": {"jobs": {**slurm, "components": [cores, MEMORY]}}}
    file = tmp_path / "auditord.yml"
    file.write_text(json.dumps(section))
    command = [sys.executable, "-m", "auditord", "--config", str(file), "collect", "jobs", "--dry-run"]
    period = ["--from", "2026-03-01", "--to", "2026-03-04"]
    done = subprocess.run([*command, *period], env=os.environ, capture_output=True, text=True, timeout=120, check=True)
    assert len(done.stdout.splitlines()) == 75
    told = [line for line in done.stderr.splitlines() if "memm" in line]
    assert len(told) == 2, done.stderr
    assert "did you mean sub_key: mem?" in told[0]
    assert told[1].startswith("no record has component Memory: components.1: sub_key 'memm' is in none of ")
    assert told[1].endswith(" rows; AllocTRES has billing, cpu, mem, node")


def test_a_column_that_no_sacct_has_is_remarked_on_with_the_nearest() -> None:
    remarks = SLURM.remarks
    assert remarks is not None
    peak = {"name": "MaxRSS", "key": "MaxRRS", "key_type": "Size", "optional": True}
    [told] = remarks(config(components=[{"name": "Cores", "key": "NCPUS"}, peak]))
    assert told.startswith("sacct may have no column MaxRRS: did you mean MaxRSS?")
    for rule in ({"key": "Partitions"}, {"template": "{Cluster}/{Partitions}"}):
        [told] = remarks(config(meta=[{"name": "queue", **rule, "key_type": "String"}]))
        assert "did you mean Partition?" in told


def test_every_column_that_slurm_lists_is_known() -> None:
    remarks = SLURM.remarks
    assert remarks is not None
    columns = HELPFORMAT.read_text().split()
    assert len(columns) > 100
    rules = [{"name": f"label{number}", "key": column} for number, column in enumerate(columns)]
    assert not remarks(config(meta=rules))
    assert not remarks(config(meta=[{"name": "planned", "key": "planned"}]))  # sacct ignores case
