"""Containers that restart while the API server or the daemon is away, against a ledger of what really happened.

A real kube-apiserver (``tests/services/kube-install`` brings it) and a real daemon are killed in turns; a program in
place of the kubelets writes statuses, and leaves out what happened between two of them. One pod changes all the time,
so that the watch is never quiet.
"""

import asyncio
import random
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.builtin.kubernetes.api_process import MISSING, ApiServer, api_server
from tests.builtin.kubernetes.kube_server import write_kubeconfig
from tests.builtin.kubernetes.pod_maker import at, container, ran
from tests.builtin.kubernetes.real_cluster import Cluster, Daemon, PodName, connected

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: run tests/services/kube-install"),
]
PODS: Final = 120
OUTAGES: Final = ("api server", "daemon", "both", "daemon", "api server", "both")
NAMESPACE: Final = "ledger"
PATIENCE: Final = 300.0
SECOND: Final = timedelta(seconds=1)
COMPONENTS: Final = [
    {"name": "naive_cpu_time", "key": "limits.cpu.time", "key_type": "Time"},
    {"name": "CoreSeconds", "key": "core_seconds"},
    {"name": "MemorySeconds", "key": "memory_seconds"},
]
"""Core-seconds while containers ran, and totals that the pod held."""


@dataclass
class PodLifetime:
    """The true life of a pod.

    Args:
        pod: it.
        way: how it ends.
        start: its own.
        clock: what its node's clock says; long ago, so that an outage may be long.
        runs: of its container; the last one goes on while its end is None.
        prepared: how long its init container ran; None if it has none.
        uid: Kubernetes' name of it.
        ended: its end is between these; the same if Kubernetes notes it.
    """

    pod: PodName
    way: str
    start: datetime
    clock: datetime
    runs: list[tuple[datetime, datetime | None]] = field(default_factory=list[tuple[datetime, datetime | None]])
    prepared: timedelta | None = None
    uid: str = ""
    ended: tuple[datetime, datetime] | None = None

    @property
    def record_id(self) -> str:
        return f"-{self.pod[0]}-{self.pod[1]}-{self.uid}"

    def pass_time(self, chance: random.Random) -> datetime:
        """Some time later."""
        self.clock += timedelta(seconds=chance.randint(10, 500))
        return self.clock

    def restart(self, chance: random.Random, times: int) -> None:
        """The container ends and starts again; only before the last start it may wait, since that end will be seen."""
        for number in range(times):
            end = self.pass_time(chance)
            self.runs[-1] = (self.runs[-1][0], end)
            self.runs.append((self.pass_time(chance) if number == times - 1 else end, None))

    def seconds(self, stop: datetime) -> int:
        """For how long its containers ran, if the pod ended then."""
        ran_for = sum(((end or stop) - start for start, end in self.runs), start=self.prepared or timedelta())
        return int(ran_for / SECOND)

    def status(self) -> dict[str, Any]:
        """The status that a kubelet writes: the present run, and the one before."""
        status = ran("main", *self.runs[-1], restartCount=len(self.runs) - 1)
        if len(self.runs) > 1:
            status["lastState"] = ran("main", *self.runs[-2])["state"]
        return {"containerStatuses": [_whole(status)]}


def _whole(status: dict[str, Any]) -> dict[str, Any]:
    return {"image": "busybox", "imageID": "", **status}


class Site:
    """The servers, the daemon, and the ledger.

    Args:
        cluster: the API server as a kubelet sees it.
        server: its process.
        daemon: it collects.
        lives: what really happens.
        chance: the test's dice.
    """

    def __init__(self, cluster: Cluster, server: ApiServer, daemon: Daemon, chance: random.Random) -> None:
        self.cluster = cluster
        self.server = server
        self.daemon = daemon
        self.chance = chance
        self.lives = [self._life(number) for number in range(PODS)]
        self.markers = 0
        self.process: asyncio.subprocess.Process | None = None

    def _life(self, number: int) -> PodLifetime:
        ways = ["ends", "ends", "is deleted", "vanishes", "vanishes", "never ran", "was prepared"]
        start = _now() - timedelta(seconds=200_000 + number)
        return PodLifetime((NAMESPACE, f"pod-{number}"), ways[number % len(ways)], start, start)

    def that(self, *ways: str) -> Sequence[PodLifetime]:
        return [life for life in self.lives if life.way in ways]

    async def born(self, life: PodLifetime) -> None:
        resources = {"limits": {"cpu": "1", "memory": "64Mi"}}
        spec: dict[str, Any] = {"containers": [container("main", **resources)], "restartPolicy": "Always"}
        if life.way == "was prepared":
            spec["initContainers"] = [container("prepare", **resources)]
        life.uid = await self.cluster.create(life.pod, **spec)
        if life.way in {"never ran", "was prepared"}:
            waits = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}, "ready": False}
            statuses: dict[str, Any] = {"phase": "Pending", "containerStatuses": [_whole({**waits, "restartCount": 0})]}
            if life.way == "was prepared":
                begun, life.prepared = life.clock, timedelta(seconds=self.chance.randint(1, 900))
                statuses["initContainerStatuses"] = [_whole(ran("prepare", begun, begun + life.prepared))]
        else:
            life.runs.append((life.pass_time(self.chance), None))
            statuses = {"phase": "Running", **life.status()}
        await self.cluster.status(life.pod, startTime=at(life.start), **statuses)

    async def restarted(self, life: PodLifetime) -> None:
        """Some restarts, of which only the last is written down."""
        life.restart(self.chance, self.chance.randint(0, 3))
        await self.cluster.status(life.pod, **life.status())

    async def over(self, life: PodLifetime) -> None:
        life.restart(self.chance, self.chance.randint(0, 2))
        end = life.pass_time(self.chance)
        life.runs[-1] = (life.runs[-1][0], end)
        life.ended = (end, end)
        await self.cluster.status(life.pod, phase=self.chance.choice(["Succeeded", "Failed"]), **life.status())

    async def deleted(self, life: PodLifetime) -> None:
        before = _now()
        await self.cluster.delete(life.pod, graceful=self.chance.random() < 0.5)
        life.ended = (before, _now() + SECOND)

    async def caught_up(self) -> datetime:
        """Wait until the daemon has read all that happened up to now, as the API server's clock says."""
        self.markers += 1
        pod = (NAMESPACE, f"marker-{self.markers}")
        await self.cluster.create(pod)
        metadata = (await self.cluster.call("GET", f"/namespaces/{pod[0]}/pods/{pod[1]}"))["metadata"]
        await until(lambda: _version(self.daemon) >= int(metadata["resourceVersion"]), self.daemon)
        return datetime.fromisoformat(metadata["creationTimestamp"])

    async def outage(self, of: str) -> None:
        """Kill, let containers restart, write their statuses late, and start again."""
        if of != "api server":
            await self.stop_daemon()
        await self.server.kill()
        await self.server.start()
        await everywhere(self.restarted, self.that("ends", "is deleted", "vanishes"))
        if of == "both":  # what was written is forgotten, too
            await self.server.kill()
            await self.server.start()
        if of != "api server":
            self.process = await self.daemon.start()
        await self.caught_up()

    async def stop_daemon(self) -> None:
        if self.process is not None:
            await self.daemon.kill(self.process)
            self.process = None

    async def vanish(self) -> None:
        """Pods go while the daemon is away, and the API server forgets that they were there."""
        known = await self.caught_up()
        await self.stop_daemon()
        await everywhere(self.deleted, self.that("vanishes"))
        for life in self.that("vanishes"):
            life.ended = (known, life.ended[1] if life.ended else known)
        await self.server.kill()
        await self.server.start()
        self.process = await self.daemon.start()

    async def never_quiet(self) -> None:
        """A pod that changes more often than a run of the daemon may find nothing to read."""
        noise = (NAMESPACE, "noise")
        await self.cluster.create(noise)
        for number in range(1_000_000):
            await self.cluster.status(noise, message=f"change {number}")
            await asyncio.sleep(0.2)


@asynccontextmanager
async def site(folder: Path) -> AsyncGenerator[Site]:
    (folder / "servers").mkdir()
    async with api_server(folder / "servers") as server, connected(server.url, server.token, "ledger") as cluster:
        write_kubeconfig(folder / "kubeconfig", server.url, server.token)
        options = {"interval": "1s", "watch_for": "3s", "components": COMPONENTS}
        here = Site(cluster, server, Daemon(folder, "ledger", **options), random.Random(12))  # noqa: S311 a test's dice
        try:
            yield here
        finally:
            await here.stop_daemon()


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _version(daemon: Daemon) -> int:
    with suppress(sqlite3.OperationalError, ValueError, KeyError):
        return int(daemon.checkpoint()["scopes"]["*"]["version"] or 0)
    return 0


async def until(condition: Callable[[], bool], daemon: Daemon) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, (daemon.folder / "log").read_text()[-4000:]
        await asyncio.sleep(0.1)


async def everywhere(work: Callable[[PodLifetime], Awaitable[None]], lives: Iterable[PodLifetime]) -> None:
    await asyncio.gather(*(work(life) for life in lives))


def difference(life: PodLifetime, record: Any) -> str | None:
    """The deviations of a record from the ledger."""
    start, stop = (datetime.fromisoformat(record[name]) for name in ("start_time", "stop_time"))
    amounts = {each["name"]: each["amount"] for each in record["components"]}
    assert life.ended is not None
    if start != life.start or not life.ended[0] <= stop <= life.ended[1]:
        return f"{life.way}: {start} to {stop}, and not {life.start} to {life.ended[0]}..{life.ended[1]}"
    expected = life.seconds(stop)
    held = (stop - start) / SECOND  # one core, and 64 MiB
    totals = {"CoreSeconds": int(held + 0.5), "MemorySeconds": int(64 * held + 0.5)}
    if amounts != {"naive_cpu_time": expected, **totals}:
        return f"{life.way}: {amounts}, and not {expected} and {totals}"
    return None


async def test_every_figure_is_that_of_the_ledger(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await here.cluster.call("POST", "/namespaces", {"metadata": {"name": NAMESPACE}})
        here.process = await here.daemon.start()
        noise = asyncio.create_task(here.never_quiet())
        await until(here.daemon.has_listed, here.daemon)
        await everywhere(here.born, here.lives)
        await here.caught_up()
        for of in OUTAGES:
            await here.outage(of)
        await everywhere(here.over, here.that("ends"))
        await everywhere(here.deleted, here.that("is deleted", "never ran", "was prepared"))
        await here.vanish()
        ids = {life.record_id for life in here.lives}
        await until(lambda: ids <= {name for name, closed in here.daemon.stored() if closed}, here.daemon)
        noise.cancel()
        records = here.daemon.records()
    found = [(life, difference(life, records[life.record_id])) for life in here.lives]
    equal = Counter(life.way for life, fault in found if fault is None)
    summary = f"{dict(equal)} of {dict(Counter(life.way for life in here.lives))}"
    print(f"equal: {summary}; kills: {here.server.kills} API server, {here.daemon.kills} daemon")  # noqa: T201
    assert f"{len(here.that('vanishes'))} pods vanished" in (tmp_path / "log").read_text()
    assert [fault for _, fault in found if fault is not None] == []
    assert {name for name, closed in here.daemon.stored() if closed} == ids
