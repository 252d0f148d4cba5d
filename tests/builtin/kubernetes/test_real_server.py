"""Against a real kube-apiserver and etcd: 5,000 pods, the daemon killed all the while, the watch expired, pods deleted.

Run by hand, since building the server takes minutes::

    export KUBE_TEST_URL=https://127.0.0.1:16443 KUBE_TEST_TOKEN=…
    pytest -s -m benchmark tests/builtin/kubernetes/test_real_server.py

There is no kubelet: the test patches the pods' status as one would.
"""

import asyncio
import os
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.builtin.kubernetes.kube_server import write_kubeconfig
from tests.builtin.kubernetes.pod_maker import at, ran
from tests.builtin.kubernetes.real_cluster import Cluster, Daemon, PodName, connected

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.benchmark,
    pytest.mark.skipif("KUBE_TEST_URL" not in os.environ, reason="needs a kube-apiserver: set KUBE_TEST_URL"),
]
NAMESPACES = [f"auditord-{number}" for number in range(4)]
PODS = int(os.environ.get("KUBE_TEST_PODS", "5000"))
RUN = f"{int(time.time())}"
BLIND = 100.0
"""Seconds after which an API server has forgotten what happened: it remembers 75 at least."""


async def start(cluster: Cluster, pod: PodName) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    await cluster.status(pod, phase="Running", startTime=at(now), containerStatuses=[_status(now, None)])


async def end(cluster: Cluster, pod: PodName, phase: str) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    await cluster.status(pod, phase=phase, containerStatuses=[_status(now - timedelta(seconds=3), now)])


def _status(start: datetime, stop: datetime | None) -> dict[str, Any]:
    return {**ran("main", start, stop), "image": "busybox", "imageID": "", "containerID": ""}


async def _haunted(daemon: Daemon, until: asyncio.Event, chance: random.Random) -> None:
    """Kill it at random moments, until something is over."""
    while not until.is_set():
        process = await daemon.start()
        with suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), chance.uniform(3, 20))
        await daemon.kill(process)


async def everywhere(work: Callable[[PodName], Awaitable[None]], pods: Sequence[PodName]) -> None:
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
    async with connected(os.environ["KUBE_TEST_URL"], token, RUN) as cluster:
        daemon, uids = Daemon(tmp_path, RUN), dict[PodName, str]()
        for namespace in NAMESPACES:
            await cluster.call("POST", "/namespaces", {"metadata": {"name": namespace}})

        async def born(pod: PodName) -> None:
            uids[pod] = await cluster.create(pod)
            await start(cluster, pod)

        async def life(pod: PodName) -> None:
            await born(pod)
            way = chance.choice(["ends", "ends", "fails", "ends and goes", "goes", "goes slowly"])
            if "ends" in way or "fails" in way:
                await end(cluster, pod, "Failed" if "fails" in way else "Succeeded")
            if "goes" in way:
                await cluster.delete(pod, graceful="slowly" in way)

        pods = [(NAMESPACES[number % len(NAMESPACES)], f"p{RUN}-{number}") for number in range(PODS)]
        restarted, blind = pods[: PODS * 7 // 10], pods[PODS * 7 // 10 :]
        finished = asyncio.Event()
        haunting = asyncio.create_task(_haunted(daemon, finished, chance))
        await until(daemon.has_listed, daemon, 60)  # what goes before nobody can know
        for first in range(0, len(restarted), 250):
            await everywhere(life, restarted[first : first + 250])
        report = [f"{len(restarted)} pods lived after {time.monotonic() - begun:.0f} s"]
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
        await everywhere(lambda pod: end(cluster, pod, "Succeeded"), [*ends, *both])
        await everywhere(lambda pod: cluster.delete(pod, graceful=False), [*goes, *both])
        await asyncio.sleep(max(0.0, BLIND - (time.monotonic() - since)))
        for pod in ends:  # the server forgets as new things happen
            await cluster.status(pod, message="over")
        path = f"/pods?watch=1&timeoutSeconds=2&resourceVersion={version}"
        async with cluster.session.get(cluster.url + path) as answer:
            said = (await answer.read())[:300]
        report.append(f"the version of the checkpoint: {answer.status} {said!r}")
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
        report.append(f"{len(stored)} records of {PODS} pods, {daemon.kills} kills, {time.monotonic() - begun:.0f} s")
        print("\n".join([*report, *re.findall(r".*vanished.*", log)]))  # noqa: T201 what such a run is for
