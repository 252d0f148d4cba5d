"""Reports of the hours that pods held, by the real program with its default configuration."""

import csv
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from tests.builtin.kubernetes.conftest import Site
from tests.builtin.kubernetes.pod_maker import NOW, START, Pod, container, make_pod, over, resized, running, scheduled

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MEASURES = ("core-hours", "gpu-hours", "memory-hours")


def pod_of(name: str, namespace: str, **requests: str) -> Pod:
    pod = make_pod(name, namespace)
    pod["spec"]["containers"] = [container(limits=requests, requests=requests)]
    return scheduled(pod, START)


async def run(folder: Path, *command: str) -> str:
    program = [sys.executable, "-m", "auditord", *command, "--config", str(folder / "auditord.yml")]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    result = await anyio.run_process(program, env=environment, check=False)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


async def test_the_defaults_give_a_report_the_hours_of_each_group(site: Site, tmp_path: Path) -> None:
    collector = {"kind": "kubernetes", "kubeconfig": str(tmp_path / "kubeconfig")}
    collector["earliest_datetime"] = "2026-11-01T00:00:00Z"
    document = {"state_dir": str(tmp_path / "state"), "api": {"enabled": False}, "collectors": {"pods": collector}}
    (tmp_path / "auditord.yml").write_text(json.dumps(document))
    await run(tmp_path, "collect", "pods", "--once")
    for number in range(10):
        site.server.put(over(pod_of(f"a{number}", "ten", cpu="400m", memory="1Gi"), NOW))
    for number in range(5):
        site.server.put(over(pod_of(f"b{number}", "five", cpu="500m"), NOW))
    site.server.put(over(pod_of("c", "one", cpu="8", memory="8Gi", **{"nvidia.com/gpu": "1"}), NOW))
    pod = site.server.put(running(pod_of("d", "resized", cpu="8")))
    pod = site.server.put(resized(pod, START + timedelta(minutes=50), cpu="1"))
    site.server.put(over(pod, NOW))
    await run(tmp_path, "collect", "pods", "--once")
    chosen = [part for measure in MEASURES for part in ("--measure", measure)]
    period = ("--from", "2026-11-01T00:00:00Z", "--to", "2026-12-01T00:00:00Z", "--bin", "none")
    table = await run(tmp_path, "report", "usage", *chosen, *period, "--output", "csv")
    rows = {row["group"]: [row[measure] for measure in MEASURES] for row in csv.DictReader(table.splitlines())}
    assert rows == {
        "ten": ["4", "0", "10"],
        "five": ["2.5", "0", ""],
        "one": ["8", "1", "8"],
        "resized": ["6.833333", "0", ""],
    }
