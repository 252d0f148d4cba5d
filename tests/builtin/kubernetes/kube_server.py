"""A small Kubernetes API server for tests: lists of pods in pages, watches with bookmarks, 410, and cut connections.

Pods are JSON as a real server wrote it (recorded/); what a watch says follows the recorded answers.
"""

import asyncio
import contextlib
import copy
import itertools
import json
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

Pod = dict[str, Any]
TOKEN = "test-token"  # noqa: S105 of this server alone


@dataclass
class Faults:
    """The faults from now on."""

    cut_list: int = 0
    """So many lists end in the middle."""
    cut_list_at: int | None = None
    """The page of a list that begins with this pod is cut, once."""
    cut_watch: list[int] = field(default_factory=list[int])
    """The next watches are cut in the middle of the line after so many events."""
    expire_tokens: int = 0
    """So many continue tokens are too old."""
    unready: int = 0
    """So many watches are answered 503, as by a server that starts."""
    refuse: set[str] = field(default_factory=set[str])
    """Namespaces that may not be listed."""
    no_single_pods: bool = False
    """A request for one pod is answered 503."""
    no_claims: int = 200
    """The status of requests for claims, unless it is 200."""
    mute: str | None = None
    """Watches of this namespace are accepted and never answered."""
    down: bool = False
    expired_by_event: bool = False
    """A version that is too old is reported by an event, as real servers do, and not by the status."""


@dataclass
class KubeServer:
    """Holds pods and everything that happened to them.

    Args:
        url: where it is.
        pods: by uid.
        claims: resource claims and their templates, by namespace, plural and name.
        events: (version, type, pod) in order.
        oldest: versions below are forgotten.
        asked: queries of lists and watches.
        watched: how many watches of each namespace are open.
        most_watched: how many watches were open at the same time.
    """

    url: str = ""
    pods: dict[str, Pod] = field(default_factory=dict[str, Pod])
    claims: dict[tuple[str, str, str], Any] = field(default_factory=dict[tuple[str, str, str], Any])
    events: list[tuple[int, str, Pod]] = field(default_factory=list[tuple[int, str, Pod]])
    oldest: int = 0
    faults: Faults = field(default_factory=Faults)
    asked: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    watched: Counter[str] = field(default_factory=Counter[str])
    most_watched: int = 0
    version: int = 100
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    # -- what happens -------------------------------------------------------------------------------------------------

    def put(self, pod: Pod) -> Pod:
        """Add or change a pod."""
        uid = pod["metadata"]["uid"]
        self._happen("MODIFIED" if uid in self.pods else "ADDED", pod)
        self.pods[uid] = self.events[-1][2]
        return pod

    def delete(self, pod: Pod) -> None:
        """Remove a pod."""
        self._happen("DELETED", self.pods.pop(pod["metadata"]["uid"]))

    def _happen(self, what: str, pod: Pod) -> None:
        self.version += 1
        changed = copy.deepcopy(pod)
        changed["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, what, changed))
        self._changed.set()
        self._changed = asyncio.Event()

    def pass_time(self) -> None:
        """Something else changes in the cluster."""
        self.version += 1

    def compact(self) -> None:
        """Forget what happened up to now; whoever asks for it gets 410."""
        self.version += 1
        self.oldest = self.version

    # -- answers ------------------------------------------------------------------------------------------------------

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Lists and watches of all namespaces or of one."""
        namespace, query = request.match_info.get("namespace"), dict(request.query)
        self.asked.append({**query, "namespace": namespace or "*"})
        if self.faults.down:
            return web.Response(status=503, text="etcdserver: no leader")
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        if (namespace or "*") in self.faults.refuse:
            return _status(403, 'pods is forbidden: User "test" cannot list resource "pods"')
        if query.get("watch"):
            with self._counted(namespace or "*"):
                return await self._watch(request, namespace, query)
        return await self._list(request, namespace, query)

    async def one(self, request: web.Request) -> web.Response:
        """A pod by its name."""
        if self.faults.no_single_pods:
            return web.Response(status=503, text="the server is starting")
        wanted = (request.match_info["namespace"], request.match_info["name"])
        for pod in self.pods.values():
            if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == wanted:
                return web.json_response(pod)
        return _status(404, "not found")

    async def claim(self, request: web.Request) -> web.Response:
        """A resource claim or a template by its name."""
        if self.faults.no_claims != 200:
            return _status(self.faults.no_claims, "no claims for you")
        match = request.match_info
        found = self.claims.get((match["namespace"], match["plural"], match["name"]))
        return _status(404, "not found") if found is None else web.json_response(found)

    async def _list(self, request: web.Request, namespace: str | None, query: dict[str, str]) -> web.StreamResponse:
        start, version = 0, self.version
        if "continue" in query:
            if self.faults.expire_tokens:
                self.faults.expire_tokens -= 1
                return _status(410, "The provided continue parameter is too old")
            start, version = (int(part) for part in query["continue"].split("."))
        chosen = [pod for pod in self.pods.values() if _selected(pod, namespace, query.get("labelSelector", ""))]
        size = int(query.get("limit", 0)) or len(chosen)
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if start + size < len(chosen):
            metadata |= {"continue": f"{start + size}.{version}", "remainingItemCount": len(chosen) - start - size}
        body = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": chosen[start : start + size]}
        if self.faults.cut_list or self.faults.cut_list_at == start:
            self.faults.cut_list, self.faults.cut_list_at = max(0, self.faults.cut_list - 1), None
            return await _cut(request, json.dumps(body).encode())
        return web.json_response(body)

    @contextlib.contextmanager
    def _counted(self, namespace: str) -> Generator[None]:
        self.watched[namespace] += 1
        self.most_watched = max(self.most_watched, self.watched.total())
        try:
            yield
        finally:
            self.watched[namespace] -= 1

    async def _watch(self, request: web.Request, namespace: str | None, query: dict[str, str]) -> web.StreamResponse:
        version = int(query["resourceVersion"])
        if namespace is not None and namespace == self.faults.mute:
            await asyncio.Event().wait()
        if self.faults.unready:
            self.faults.unready -= 1
            return web.Response(status=503, text="the server is starting")
        if version < self.oldest and not self.faults.expired_by_event:
            return _status(410, f"too old resource version: {version} ({self.oldest})")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if version < self.oldest:
            gone = {
                "kind": "Status",
                "code": 410,
                "reason": "Expired",
                "message": f"too old resource version: {version}",
            }
            await _write(response, {"type": "ERROR", "object": gone})
            return response
        deadline = asyncio.get_running_loop().time() + float(query["timeoutSeconds"])
        cut_after = self.faults.cut_watch.pop(0) if self.faults.cut_watch else None
        with contextlib.suppress(ConnectionResetError):
            wanted = (namespace, query.get("labelSelector", ""))
            if not await self._tell(response, wanted, version, deadline, cut_after):
                _abort(request)
        return response

    async def _tell(
        self,
        response: web.StreamResponse,
        wanted: tuple[str | None, str],
        version: int,
        deadline: float,
        cut_after: int | None,
    ) -> bool:
        """Tell what happens; False if the connection is to be cut."""
        sent = itertools.count()
        while True:
            changed = self._changed
            for number, what, pod in [event for event in self.events if event[0] > version]:
                version = number
                if _selected(pod, *wanted):
                    event = {"type": what, "object": pod}
                    if next(sent) == cut_after:
                        await response.write(json.dumps(event).encode()[:100])
                        return False
                    await _write(response, event)
            if version < self.version:  # real servers bring a bookmark once a minute
                version = self.version
                await _write(response, {"type": "BOOKMARK", "object": _bookmark(version)})
            try:
                await asyncio.wait_for(changed.wait(), deadline - asyncio.get_running_loop().time())
            except TimeoutError:
                return True


def _selected(pod: Pod, namespace: str | None, selector: str) -> bool:
    labels = pod["metadata"].get("labels", {})
    pairs = [part.replace("==", "=").split("=") for part in selector.split(",") if part]
    fits = all(labels.get(name) == value for name, value in pairs)
    return fits and namespace in {None, pod["metadata"]["namespace"]}


def _bookmark(version: int) -> Pod:
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"containers": None}, "status": {}}


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "message": message, "code": code}, status=code)


async def _write(response: web.StreamResponse, event: Pod) -> None:
    await response.write(json.dumps(event).encode() + b"\n")


async def _cut(request: web.Request, body: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    _abort(request)
    return response


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


@asynccontextmanager
async def serving(folder: Path) -> AsyncGenerator[KubeServer]:
    """A server on a port of its own, with ``kubeconfig`` in the folder."""
    server, app = KubeServer(), web.Application()
    app.router.add_get("/api/v1/pods", server.answer)
    app.router.add_get("/api/v1/namespaces/{namespace}/pods", server.answer)
    app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}", server.one)
    app.router.add_get("/apis/resource.k8s.io/v1/namespaces/{namespace}/{plural}/{name}", server.claim)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        write_kubeconfig(folder / "kubeconfig", server.url, TOKEN)
        yield server
    finally:
        await runner.cleanup()


def write_kubeconfig(file: Path, url: str, token: str) -> None:
    """The configuration of clients."""
    cluster = {"server": url, "insecure-skip-tls-verify": True} if url.startswith("https") else {"server": url}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    file.write_text(json.dumps(document))
