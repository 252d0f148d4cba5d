"""The services of the tests: two checkouts on one host do not take each other's for their own."""

import os
import shutil
import subprocess
from pathlib import Path

SERVICES = Path(__file__).parents[1] / "services"
SCRIPTS = ("slurm-up", "slurm-down", "slurm-cluster")


def checkout(folder: Path) -> Path:
    """A second checkout, with programs that play a Slurm whose cluster is called ``others``."""
    services = folder / "tests/services"
    services.mkdir(parents=True)
    for name in SCRIPTS:
        shutil.copy(SERVICES / name, services / name)
    programs = folder / "programs"
    programs.mkdir()
    for name, prints in (("scontrol", "ClusterName             = others"), ("sinfo", "idle"), ("sacctmgr", "biology")):
        (programs / name).write_text(f"#!/bin/sh\necho '{prints}'\n")
        (programs / name).chmod(0o755)
    return services


def run(services: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{services.parents[1] / 'programs'}:{os.environ['PATH']}"
    everything = {"PATH": path, "SLURM_TEST_DIR": str(services.parent / "slurm"), **environment}
    return subprocess.run([services / script], env=everything, capture_output=True, text=True, check=False)


def test_each_checkout_has_a_cluster_of_its_own(tmp_path: Path) -> None:
    names = {run(checkout(tmp_path / name), "slurm-cluster").stdout for name in ("one", "two")}
    assert len(names) == 2
    assert all(name.startswith("auditord_") for name in names)


def test_a_cluster_of_another_checkout_is_neither_used_nor_stopped(tmp_path: Path) -> None:
    services = checkout(tmp_path)
    (services.parent / "slurm").mkdir()
    up = run(services, "slurm-up")
    assert up.returncode == 1
    assert "cluster others of another checkout runs here" in up.stderr
    assert "SLURM_TEST_CLUSTER=others" in up.stderr
    if os.geteuid() == 0:
        down = run(services, "slurm-down")
        assert (down.returncode, "another checkout's, and stays" in down.stderr) == (1, True)


def test_it_is_shared_when_it_is_named(tmp_path: Path) -> None:
    up = run(checkout(tmp_path), "slurm-up", SLURM_TEST_CLUSTER="others")
    assert (up.returncode, up.stdout) == (0, "slurm-up: Slurm is running already\n")
