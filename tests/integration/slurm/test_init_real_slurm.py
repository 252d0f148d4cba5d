"""``auditord init`` beside a real Slurm: what it writes is what the first collection needs."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from auditord.cli import auditord
from tests.slurm_jobs import missing_slurm

pytestmark = pytest.mark.slurm


def test_it_finds_the_cluster_and_its_gpus(tmp_path: Path) -> None:
    if reason := missing_slurm():
        pytest.skip(reason)
    file = tmp_path / "a.yml"
    done = CliRunner().invoke(auditord, ["init", "--yes", "--config", str(file)])
    assert done.exit_code == 0, done.output
    assert "found: Slurm cluster auditord_" in done.output
    assert ", with slurmdbd" in done.output
    assert "sub_key: gres/gpu" in file.read_text()
    checked = CliRunner().invoke(auditord, ["config", "check", "--config", str(file)])
    assert "the configuration is fine: 1 collector;" in checked.output
