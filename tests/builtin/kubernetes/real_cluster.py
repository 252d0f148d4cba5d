"""Pods of a real API server, with the kubelet that it lacks, and the real daemon that collects them."""

import asyncio
import json
import os
import sqlite3
import ssl
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import aiohttp

MERGE = {"Content-Type": "application/merge-patch+json"}
PodName = tuple[str, str]
"""Namespace and name."""


class Cluster:
    """A real API server, and the kubelet that it lacks.

    Args:
        session: whoever speaks to it.
        url: where it is.
        run: the pods' label, which tells them from those of other runs.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, run: str) -> None:
        self.session = session
        self.url = f"{url}/api/v1"
        self.run = run
        self._gate = asyncio.Semaphore(24)

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Ask until there is an answer: a server closes connections when it likes, and some are killed."""
        for attempt in range(40):
            with suppress(aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                async with (
                    self._gate,
                    self.session.request(method, self.url + path, json=body, headers=headers) as answer,
                ):
                    found = await answer.json()
                    if answer.status not in {429, 500, 503}:  # it starts
                        assert answer.status in {200, 201, 202, 404, 409}, found
                        return found
            await asyncio.sleep(0.05 * attempt)
        raise AssertionError(path)

    async def create(self, pod: PodName, **spec: Any) -> str:
        """A pod of one container with half a core, unless the spec says more; its uid."""
        amounts = {"limits": {"cpu": "500m", "memory": "64Mi"}}
        main = {"name": "main", "image": "busybox", "resources": amounts}
        whole = {"containers": [main], "restartPolicy": "Never", "nodeName": "wn01", **spec}
        body = {"metadata": {"name": pod[1], "labels": {"run": self.run}}, "spec": whole}
        await self.call("POST", f"/namespaces/{pod[0]}/pods", body)
        found = await self.call("GET", f"/namespaces/{pod[0]}/pods/{pod[1]}")
        uid: str = found["metadata"]["uid"]
        return uid

    async def status(self, pod: PodName, **status: Any) -> Any:
        """Write members of a pod's status; what it has of others stays."""
        return await self.call("PATCH", f"/namespaces/{pod[0]}/pods/{pod[1]}/status", {"status": status}, **MERGE)

    async def delete(self, pod: PodName, *, graceful: bool) -> None:
        """Remove a pod, after a time of grace that its containers do not need."""
        path = f"/namespaces/{pod[0]}/pods/{pod[1]}"
        if graceful:
            await self.call("DELETE", path, {"gracePeriodSeconds": 30})
        await self.call("DELETE", path, {"gracePeriodSeconds": 0})


@asynccontextmanager
async def connected(url: str, token: str, run: str) -> AsyncGenerator[Cluster]:
    """Speak to a server, whatever its certificate, as a kubelet."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {token}", "User-Agent": "kubelet/v1"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust), headers=headers) as session:
        yield Cluster(session, url, run)


class Daemon:
    """The real process, started and killed again and again.

    Args:
        folder: where its files are; ``kubeconfig`` is there.
        run: the label of the pods that it collects.
        options: of the collector, besides.
    """

    def __init__(self, folder: Path, run: str, **options: Any) -> None:
        self.folder = folder
        self.kills = 0
        collector = {
            "kind": "kubernetes",
            "interval": "2s",
            "kubeconfig": str(folder / "kubeconfig"),
            "earliest_datetime": "2026-01-01T00:00:00Z",
            "job_filter": {"labels": [f"run={run}"]},
            "open_records": True,
            "watch_for": "5s",
            **options,
        }
        document = {"state_dir": str(folder / "state"), "api": {"enabled": False}, "collectors": {"kube": collector}}
        (folder / "auditord.yml").write_text(json.dumps(document))

    async def start(self) -> asyncio.subprocess.Process:
        """Start it, and go on."""
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-m", "auditord", "run", "--config", str(self.folder / "auditord.yml")]
            environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
            return await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=environment)

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        """Kill it as ``kill -9`` does."""
        process.kill()
        await process.wait()
        self.kills += 1

    def records(self) -> dict[str, Any]:
        """All records by id, as JSON."""
        rows = self._rows("records.db", "SELECT record_id, document FROM records")
        return {name: json.loads(document) for name, document in rows}

    def stored(self) -> list[tuple[str, bool]]:
        """The ids of all records, and whether they have a stop time."""
        return [(name, bool(closed)) for name, closed in self._rows("records.db", _STORED)]

    def has_listed(self) -> bool:
        """Tell if a list is behind it."""
        try:
            return bool(self.checkpoint()["scopes"])
        except (sqlite3.OperationalError, ValueError):  # no spool yet, no checkpoint yet
            return False

    def checkpoint(self) -> Any:
        """The version up to which it has come."""
        [(value,)] = self._rows("spool.db", "SELECT value FROM checkpoint WHERE task = 'kube'")
        return json.loads(value)

    def _rows(self, file: str, query: str) -> list[Any]:
        url = f"file:{self.folder}/state/{file}?mode=ro"
        with closing(sqlite3.connect(url, uri=True, timeout=60)) as connection:
            return connection.execute(query).fetchall()


_STORED = "SELECT record_id, stop_time IS NOT NULL FROM records"
