"""Against a real kube-apiserver and etcd: 5,000 pods, the daemon killed all the while, the watch expired, pods deleted.

Run by hand, since building the server takes minutes::

    export KUBE_TEST_URL=https://127.0.0.1:16443 KUBE_TEST_TOKEN=…
    pytest -s -m benchmark tests/builtin/kubernetes/test_real_server.py

There is no kubelet: the test patches the pods' status as one would.
"""

import asyncio
import json
import os
import random
import re
import sqlite3
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.builtin.kubernetes.kube_server import write_kubeconfig
from tests.builtin.kubernetes.pod_maker import at, ran

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.benchmark,
    pytest.mark.skipif("KUBE_TEST_URL" not in os.environ, reason="needs a kube-apiserver: set KUBE_TEST_URL"),
]
MERGE = {"Content-Type": "application/strategic-merge-patch+json"}
NAMESPACES = [f"auditord-{number}" for number in range(4)]
PODS = int(os.environ.get("KUBE_TEST_PODS", "5000"))
RUN = f"{int(time.time())}"
BLIND = 100.0
"""Seconds after which an API server has forgotten what happened: it remembers 75 at least."""


class Cluster:
    """A real API server, and the kubelet that it lacks."""

    def __init__(self, session: aiohttp.ClientSession, recorded: Path) -> None:
        self.session = session
        self.url = os.environ["KUBE_TEST_URL"] + "/api/v1"
        self.recorded = recorded
        self.gate = asyncio.Semaphore(24)

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        for attempt in range(40):  # a server closes connections when it likes
            with suppress(aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                async with (
                    self.gate,
                    self.session.request(method, self.url + path, json=body, headers=headers) as answer,
                ):
                    found = await answer.json()
                    assert answer.status in {200, 201, 202, 404, 409}, found
                    return found
            await asyncio.sleep(0.05 * attempt)
        raise AssertionError(path)

    async def create(self, name: str, namespace: str) -> str:
        amounts = {"limits": {"cpu": "500m", "memory": "64Mi"}}
        main = {"name": "main", "image": "busybox", "resources": amounts}
        spec = {"containers": [main], "restartPolicy": "Never", "nodeName": "wn01"}
        body = {"metadata": {"name": name, "labels": {"run": RUN}}, "spec": spec}
        await self.call("POST", f"/namespaces/{namespace}/pods", body)
        pod = await self.call("GET", f"/namespaces/{namespace}/pods/{name}")
        uid: str = pod["metadata"]["uid"]
        return uid

    async def status(self, pod: tuple[str, str], **status: Any) -> None:
        path = f"/namespaces/{pod[0]}/pods/{pod[1]}/status"
        await self.call("PATCH", path, {"status": status}, **MERGE)

    async def start(self, pod: tuple[str, str]) -> None:
        now = datetime.now(UTC).replace(microsecond=0)
        await self.status(pod, phase="Running", startTime=at(now), containerStatuses=[_status(now, None)])

    async def end(self, pod: tuple[str, str], phase: str) -> None:
        now = datetime.now(UTC).replace(microsecond=0)
        ended = _status(now - timedelta(seconds=3), now)
        ended["state"]["running"] = None  # a strategic merge would keep it
        await self.status(pod, phase=phase, containerStatuses=[ended])

    async def delete(self, pod: tuple[str, str], *, graceful: bool) -> None:
        path = f"/namespaces/{pod[0]}/pods/{pod[1]}"
        if graceful:
            await self.call("DELETE", path, {"gracePeriodSeconds": 30})
        await self.call("DELETE", path, {"gracePeriodSeconds": 0})


def _status(start: datetime, stop: datetime | None) -> dict[str, Any]:
    return {**ran("main", start, stop), "image": "busybox", "imageID": "", "containerID": ""}


class Daemon:
    """The real process, started and killed again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kills = 0
        collector = {
            "kind": "kubernetes",
            "interval": "2s",
            "kubeconfig": str(folder / "kubeconfig"),
            "earliest_datetime": "2026-01-01T00:00:00Z",
            "job_filter": {"labels": [f"run={RUN}"]},
            "open_records": True,
            "watch_for": "5s",
        }
        document = {"state_dir": str(folder / "state"), "api": {"enabled": False}, "collectors": {"kube": collector}}
        (folder / "auditord.yml").write_text(json.dumps(document))

    async def start(self) -> asyncio.subprocess.Process:
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-m", "auditord", "run", "--config", str(self.folder / "auditord.yml")]
            environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
            return await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=environment)

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        process.kill()
        await process.wait()
        self.kills += 1

    async def haunted(self, until: asyncio.Event, chance: random.Random) -> None:
        """Kill it at random moments, until something is over."""
        while not until.is_set():
            process = await self.start()
            with suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), chance.uniform(3, 20))
            await self.kill(process)

    def stored(self) -> list[tuple[str, bool]]:
        file = self.folder / "state" / "records.db"
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60)) as connection:
            rows = connection.execute("SELECT record_id, stop_time FROM records").fetchall()
        return [(name, stop is not None) for name, stop in rows]

    def has_listed(self) -> bool:
        try:
            return bool(self.checkpoint()["scopes"])
        except (sqlite3.OperationalError, ValueError):  # no spool yet, no checkpoint yet
            return False

    def checkpoint(self) -> Any:
        with closing(sqlite3.connect(f"file:{self.folder}/state/spool.db?mode=ro", uri=True, timeout=60)) as connection:
            [(value,)] = connection.execute("SELECT value FROM checkpoint WHERE task = 'kube'").fetchall()
        return json.loads(value)


async def everywhere(work: Callable[[tuple[str, str]], Awaitable[None]], pods: Sequence[tuple[str, str]]) -> None:
    await asyncio.gather(*(work(pod) for pod in pods))


async def until(condition: Callable[[], bool], daemon: Daemon, patience: float = 600) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, (daemon.folder / "log").read_text()[-4000:]
        await asyncio.sleep(0.5)


async def test_every_pod_exactly_once(tmp_path: Path) -> None:  # noqa: PLR0915 one story, told in order
    chance, begun = random.Random(1), time.monotonic()  # noqa: S311 a test's dice
    token = os.environ["KUBE_TEST_TOKEN"]
    write_kubeconfig(tmp_path / "kubeconfig", os.environ["KUBE_TEST_URL"], token)
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust), headers=headers) as session:
        cluster, daemon, uids = Cluster(session, tmp_path), Daemon(tmp_path), dict[tuple[str, str], str]()
        for namespace in NAMESPACES:
            await cluster.call("POST", "/namespaces", {"metadata": {"name": namespace}})

        async def born(pod: tuple[str, str]) -> None:
            uids[pod] = await cluster.create(pod[1], pod[0])
            await cluster.start(pod)

        async def life(pod: tuple[str, str]) -> None:
            await born(pod)
            way = chance.choice(["ends", "ends", "fails", "ends and goes", "goes", "goes slowly"])
            if "ends" in way or "fails" in way:
                await cluster.end(pod, "Failed" if "fails" in way else "Succeeded")
            if "goes" in way:
                await cluster.delete(pod, graceful="slowly" in way)

        pods = [(NAMESPACES[number % len(NAMESPACES)], f"p{RUN}-{number}") for number in range(PODS)]
        restarted, blind = pods[: PODS * 7 // 10], pods[PODS * 7 // 10 :]
        finished = asyncio.Event()
        haunting = asyncio.create_task(daemon.haunted(finished, chance))
        await until(daemon.has_listed, daemon, 60)  # what goes before nobody can know
        for start in range(0, len(restarted), 250):
            await everywhere(life, restarted[start : start + 250])
        told = [f"{len(restarted)} pods lived after {time.monotonic() - begun:.0f} s"]
        finished.set()
        await haunting
        # The watch expires: pods that are known to run end and go while nobody looks.
        process = await daemon.start()
        await everywhere(born, blind)
        await until(lambda: len(daemon.stored()) >= PODS, daemon)
        await daemon.kill(process)
        version = daemon.checkpoint()["scopes"]["*"]["version"]
        third = len(blind) // 3
        ends, goes, both = blind[:third], blind[third : 2 * third], blind[2 * third :]
        since = time.monotonic()
        await everywhere(lambda pod: cluster.end(pod, "Succeeded"), [*ends, *both])
        await everywhere(lambda pod: cluster.delete(pod, graceful=False), [*goes, *both])
        await asyncio.sleep(max(0.0, BLIND - (time.monotonic() - since)))
        for pod in ends:  # the server forgets as new things happen
            await cluster.status(pod, message="over")
        path = f"/pods?watch=1&timeoutSeconds=2&resourceVersion={version}"
        async with session.get(cluster.url + path) as answer:
            said = (await answer.read())[:300]
        told.append(f"the version of the checkpoint: {answer.status} {said!r}")
        process = await daemon.start()
        await until(lambda: sum(closed for _, closed in daemon.stored()) >= PODS, daemon)
        await asyncio.sleep(10)
        process.terminate()
        await process.wait()
        stored = Counter(dict(daemon.stored()).keys())
        assert b'"code":410' in said
        assert stored == Counter(f"-{pod[0]}-{pod[1]}-{uid}" for pod, uid in uids.items())
        assert all(closed for _, closed in daemon.stored())
        log = (tmp_path / "log").read_text()
        told.append(f"{len(stored)} records of {PODS} pods, {daemon.kills} kills, {time.monotonic() - begun:.0f} s")
        print("\n".join([*told, *re.findall(r".*vanished.*", log)]))  # noqa: T201 what such a run is for
