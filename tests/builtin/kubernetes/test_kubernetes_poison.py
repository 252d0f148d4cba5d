"""Pods that cannot be read or converted, and a real daemon that is killed again and again."""

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from auditord_builtin.kubernetes.collecting import KUBERNETES
from auditord_hookspecs import Produced
from tests.auditord_process import stored_ids
from tests.builtin.kubernetes.conftest import Site
from tests.builtin.kubernetes.pod_maker import NOW, START, make_pod, over, resized, running

pytestmark = pytest.mark.anyio
PATIENCE = 60.0


async def test_a_pod_that_cannot_be_read_is_set_aside_with_its_raw_form_and_stops_nothing(site: Site) -> None:
    bad = over(make_pod("bad"), NOW)
    bad["status"]["startTime"] = "yesterday"
    site.server.put(bad)
    site.server.put(over(make_pod("good"), NOW))
    assert [record.record_id for record in await site.collect()] == ["-grid-good-uid-grid-good"]
    [quarantined] = [one for batch in site.context.kept for one in batch.quarantined]
    assert quarantined.source_id == "grid/bad/uid-grid-bad"
    assert "startTime" in quarantined.reason
    assert quarantined.raw["pod"]["status"]["startTime"] == "yesterday"
    assert KUBERNETES.convert is not None
    mended = {**quarantined.raw, "pod": over(make_pod("bad"), NOW)}
    assert KUBERNETES.convert(site.config(), mended) is not None
    assert KUBERNETES.convert(site.config(), {**mended, "pod": running(make_pod("bad"))}) is None


async def test_the_record_of_a_pod_that_was_set_aside_names_it_so_that_its_entry_is_resolved(site: Site) -> None:
    pod = running(make_pod("bad"))
    pod["status"]["startTime"] = "yesterday"
    site.server.put(pod)
    assert await site.collect() == []
    site.server.put(over(make_pod("bad"), NOW))
    await site.collect()
    [quarantined] = [one for batch in site.context.kept for one in batch.quarantined]
    [produced] = [one for batch in site.context.kept for one in batch.records]
    assert isinstance(produced, Produced)
    assert produced.source_id == quarantined.source_id


async def test_other_things_than_pods_are_set_aside(site: Site) -> None:
    odd: Any = {"metadata": {"uid": "x", "name": "n", "namespace": "grid"}, "spec": [], "status": None}
    site.server.put(odd)
    assert await site.collect() == []
    assert [one.source_id for batch in site.context.kept for one in batch.quarantined] == ["grid/n/x"]


def daemon(folder: Path, *command: str) -> "subprocess.Popen[bytes]":
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    with (folder / "log").open("ab") as log:
        program = [sys.executable, "-m", "auditord", *command, "--config", str(folder / "auditord.yml")]
        return subprocess.Popen(program, stdout=log, stderr=log, env=environment)


def write(folder: Path, **options: Any) -> None:
    collector: dict[str, Any] = {
        "kind": "kubernetes",
        "interval": "1s",
        "kubeconfig": str(folder / "kubeconfig"),
    }
    collector |= {"earliest_datetime": (NOW - timedelta(days=9)).isoformat(), **options}
    document = {"state_dir": str(folder / "state"), "api": {"enabled": False}, "collectors": {"kube": collector}}
    (folder / "auditord.yml").write_text(json.dumps(document))


@pytest.mark.slow
async def test_a_real_daemon_is_killed_and_counts_every_pod_once_with_all_its_sizes(site: Site, tmp_path: Path) -> None:
    chance, names = random.Random(7), list[str]()  # noqa: S311 a test's dice
    write(tmp_path, open_records=True)
    first = daemon(tmp_path, "collect", "kube", "--once")  # a list shows the last of a pod's sizes alone
    assert await to_thread.run_sync(first.wait, PATIENCE) == 0, log(tmp_path)
    for turn in range(4):
        process = daemon(tmp_path, "run")
        try:
            until = time.monotonic() + chance.uniform(1, 3)
            while time.monotonic() < until:
                pod = make_pod(f"job{turn}-{len(names)}")
                pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "8"
                pod = site.server.put(running(pod))
                await anyio.sleep(0.02)
                pod = site.server.put(resized(pod, START + timedelta(minutes=50), cpu="1"))
                await anyio.sleep(0.02)
                site.server.put(over(pod, NOW))
                names.append(pod["metadata"]["name"])
        finally:
            process.kill()
            process.wait()
    poison = make_pod("poison", user="")
    site.server.put(over(poison, NOW))
    rule = {"name": "user_id", "key": "label.user", "key_type": "String"}
    write(tmp_path, meta=[{**rule, "optional": False, "only_if": {"key": "podname", "matches": "poison"}}])
    assert await to_thread.run_sync(daemon(tmp_path, "collect", "kube", "--once").wait, PATIENCE) == 0, log(tmp_path)
    write(tmp_path, meta=[rule])
    assert await to_thread.run_sync(daemon(tmp_path, "quarantine", "retry", "--all").wait, PATIENCE) == 0, log(tmp_path)
    process = daemon(tmp_path, "run")
    try:
        deadline = time.monotonic() + PATIENCE
        while len(stored_ids(tmp_path, finished=True)) <= len(names):
            assert time.monotonic() < deadline, log(tmp_path)
            await anyio.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    expected = sorted(f"-grid-{name}-uid-grid-{name}" for name in [*names, "poison"])
    assert sorted(stored_ids(tmp_path, finished=True)) == expected
    assert core_seconds(tmp_path) == {f"-grid-{name}-uid-grid-{name}": 24_600 for name in names}


def core_seconds(folder: Path) -> dict[str, int]:
    """The core-seconds of all records, except that of the pod that was set aside."""
    with closing(sqlite3.connect(f"file:{folder}/state/records.db?mode=ro", uri=True, timeout=PATIENCE)) as connection:
        rows = connection.execute("SELECT record_id, document FROM records").fetchall()
    return {
        record_id: component["amount"]
        for record_id, document in rows
        for component in json.loads(document)["components"]
        if component["name"] == "CoreSeconds" and "poison" not in record_id
    }


def log(folder: Path) -> str:
    return (folder / "log").read_text()[-3000:]
