"""Read pods from the Kubernetes API: connect, list in pages, watch for changes.

``following`` calls :func:`pages` in the first run and after a watch has expired, and :func:`follow` in every run.
"""

import importlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import anyio
import msgspec
import stamina

from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_hookspecs import AuditordError

ALL: Final = "*"
REQUEST_SECONDS: Final = 60.0
"""The time limit of a request for a page of pods."""

_MAX_LINE: Final = 64 * 1024 * 1024
_FAULTS: Final = (aiohttp.ClientError, OSError, TimeoutError)


class Unreachable(AuditordError):
    """The API server did not answer, or its answer was truncated.

    Remedy:
        `auditord doctor` checks the connection and the permissions of the service account; the next run continues from
            the checkpoint.
    """


class Expired(AuditordError):
    """The resource version or continue token is too old for the API server (410 Gone), or of another cluster.

    Remedy:
        none is needed; the collector lists all pods again.
    """


class Refused(AuditordError):
    """The account of the collector lacks a permission.

    Remedy:
        give the account the verbs that the message names; `auditord manual kubernetes` lists all of them.
    """


class Cluster:
    """A client for the pods and resource claims of a cluster.

    Args:
        api: kubernetes-asyncio's ``CoreV1Api``.
        others: its ``CustomObjectsApi``.
        config: the instance's options.
    """

    def __init__(self, api: Any, others: Any, config: KubernetesConfig) -> None:  # Any: the library's types do not help
        self._api = api
        self._others = others
        self._selector: Final = {"label_selector": config.selector} if config.selector else {}

    async def page(self, scope: str, limit: int, token: str) -> bytes:
        """Return a page of the list of pods in a namespace, or in all (``*``), as JSON.

        A ``limit`` of 0 means no limit. ``token`` is the continue token of the previous page, empty for the first page.

        Raises:
            Expired: the token is too old.
            Unreachable: the answer is missing or incomplete.
            AuditordError: the server refused the request.
        """
        options = {**({"limit": limit} if limit else {}), **({"_continue": token} if token else {})}
        return await self._read(scope, **self._selector, **options)

    async def sample(self, scope: str) -> bytes:
        """Return a list of at most one pod with any labels, for the current resource version.

        Raises:
            Unreachable: the answer is missing or incomplete.
            AuditordError: the server refused the request.
        """
        return await self._read(scope, limit=1)

    async def _read(self, scope: str, **options: Any) -> bytes:
        try:
            with anyio.fail_after(REQUEST_SECONDS):
                async with self._answer(scope, **options) as answer:
                    return await answer.read()
        except _FAULTS as error:
            raise Unreachable(f"{_describe_scope(scope)}: cannot list pods: {_describe(error)}") from error

    @asynccontextmanager
    async def watch(self, scope: str, version: str, patience: timedelta) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Open a watch from a resource version, and yield its JSON lines until the server ends the watch.

        Raises:
            Expired: the version is too old.
            Unreachable: the connection failed or was lost.
            AuditordError: the server refused the request.
        """
        seconds = max(1, int(patience.total_seconds()))
        options = {"watch": True, "allow_watch_bookmarks": True, "resource_version": version}
        try:
            async with self._answer(scope, **self._selector, **options, timeout_seconds=seconds) as answer:
                yield _lines(answer)
        except _FAULTS as error:
            raise Unreachable(f"{_describe_scope(scope)}: the watch was interrupted: {_describe(error)}") from error

    async def uid_of(self, namespace: str, name: str) -> str | None:
        """Return the uid of the current pod with this name, or None.

        Raises:
            Unreachable: the answer is missing or incomplete.
        """
        request = self._api.read_namespaced_pod(name, namespace, _preload_content=False)
        body = await self._one(request, namespace, f"pod {name}", "pods")
        return None if body is None else str(msgspec.json.decode(body)["metadata"]["uid"])

    async def resource(self, plural: str, namespace: str, name: str) -> bytes | None:
        """Return a ResourceClaim or its template as JSON, or None if it does not exist.

        Raises:
            Unreachable: the answer is missing or incomplete.
            Refused: the account may not read it.
        """
        group, version = "resource.k8s.io", "v1"
        request = self._others.get_namespaced_custom_object(
            group, version, namespace, plural, name, _preload_content=False
        )
        return await self._one(request, namespace, f"{plural} {name}", plural)

    async def _one(self, request: Awaitable[Any], namespace: str, named: str, plural: str) -> bytes | None:
        try:
            with anyio.fail_after(REQUEST_SECONDS):
                answer: aiohttp.ClientResponse = await request
                async with answer:
                    if answer.status == HTTPStatus.NOT_FOUND:
                        return None
                    await _check(namespace, answer, plural)
                    return await answer.read()
        except _FAULTS as error:
            raise Unreachable(f"{_describe_scope(namespace)}: no answer about {named}: {_describe(error)}") from error

    @asynccontextmanager
    async def _answer(self, scope: str, **options: Any) -> AsyncGenerator[aiohttp.ClientResponse]:
        if scope == ALL:
            request = self._api.list_pod_for_all_namespaces
        else:
            request, options = self._api.list_namespaced_pod, {"namespace": scope, **options}
        # No limit for reading, since a watch may be silent. It is answered at once, though.
        timeout = (REQUEST_SECONDS, None)
        with anyio.fail_after(REQUEST_SECONDS):
            answer: aiohttp.ClientResponse = await request(**options, _preload_content=False, _request_timeout=timeout)
        async with answer:
            await _check(scope, answer)
            yield answer


async def _check(scope: str, answer: aiohttp.ClientResponse, plural: str = "pods") -> None:
    if answer.status == HTTPStatus.OK:
        return
    text = (await answer.text(errors="replace"))[:300]
    if answer.status == HTTPStatus.GONE:
        raise Expired(f"{_describe_scope(scope)}: {text}")
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Unreachable(f"{_describe_scope(scope)}: the API server answered {answer.status}: {text}")
    refusal = f"{_describe_scope(scope)}: the API server refuses ({answer.status}): {text}"
    if answer.status == HTTPStatus.FORBIDDEN:
        verbs = "verbs list, watch and get" if plural == "pods" else "verb get"
        raise Refused(f"{refusal}; it needs the {verbs} on {plural}")
    raise AuditordError(refusal)


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield complete lines. A partial line at the end of a connection is dropped."""
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE:
            raise AuditordError(f"the API server sent an event of more than {_MAX_LINE} bytes")
        for line in lines:
            if line.strip():
                yield line


def _describe_scope(scope: str) -> str:
    return "all namespaces" if scope == ALL else f"namespace {scope}"


def _describe(error: BaseException) -> str:
    """Format a connection error. Some errors have no text."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@asynccontextmanager
async def open_cluster(config: KubernetesConfig) -> AsyncGenerator[Cluster]:
    """Open the configured cluster.

    Raises:
        AuditordError: the library is not installed, or no cluster is configured.
    """
    try:
        library = importlib.import_module("kubernetes_asyncio")
    except ImportError as error:
        text = "kubernetes-asyncio is not installed: pip install 'auditord[kubernetes]'"
        raise AuditordError(text) from error
    settings = library.client.Configuration()
    try:
        if config.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            library.config.load_incluster_config(client_configuration=settings)
        else:
            file = None if config.kubeconfig is None else str(config.kubeconfig)
            await library.config.load_kube_config(
                file, context=config.kube_context, client_configuration=settings, persist_config=False
            )
        settings.connection_pool_maxsize = 0  # no limit, since all namespaces are watched concurrently
        client = library.client.ApiClient(configuration=settings)
    except (library.config.ConfigException, OSError) as error:
        raise AuditordError(f"cannot reach a cluster: {error}; set kubeconfig") from error
    async with client:
        yield Cluster(library.client.CoreV1Api(client), library.client.CustomObjectsApi(client), config)


class PodEvent(msgspec.Struct, frozen=True):
    """A pod's JSON from a list or an event. ``gone`` is true if it was deleted, or no longer matches the selector."""

    raw: msgspec.Raw
    gone: bool = False


class Page(msgspec.Struct, frozen=True):
    """A page of the list of current pods. A watch can continue from ``version``.

    A list that starts over because its token expired has another ``first`` page.
    """

    pods: Sequence[PodEvent]
    version: str
    first: bool


class WatchEnd(Enum):
    """The reason why reading a watch stopped; see :class:`WatchResult`."""

    MORE = "more"
    QUIET = "quiet"
    CLOSED = "closed"
    EXPIRED = "expired"


@dataclass
class WatchResult:
    """The events that one call of :func:`follow` has read. The next call continues from ``version``.

    ``ended`` is MORE at the limit of events or after a lost connection, QUIET if no event arrived for a while, CLOSED
    if the server ended the watch, and EXPIRED if the version is too old or too new. No event before ``known_until`` is
    missing; None means unknown.
    """

    version: str
    events: list[PodEvent] = field(default_factory=list[PodEvent])
    ended: WatchEnd = WatchEnd.MORE
    known_until: datetime | None = None


class Limits(msgspec.Struct, frozen=True):
    """The limits of one call of :func:`follow`.

    Args:
        events: the maximum number of events.
        quiet: stop if no event arrives for this long.
        patience: the time limit of the watch, and of reconnecting.
        pause: an event that arrives after a silence of this length is current. Earlier ones may be a backlog.
    """

    events: int
    quiet: timedelta
    patience: timedelta
    pause: timedelta


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str
    token: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ObjectMetadata(msgspec.Struct, rename="camel"):
    resource_version: str | None = None


class _Object(msgspec.Struct):
    """The fields that the objects of events share: pods, bookmarks and statuses."""

    metadata: _ObjectMetadata | None = None
    code: int | None = None
    message: str | None = None


_list: Final = msgspec.json.Decoder(_List)
_event: Final = msgspec.json.Decoder(_Event)
_object: Final = msgspec.json.Decoder(_Object)


async def pages(cluster: Cluster, scope: str, size: int) -> AsyncIterator[Page]:
    """Yield a consistent list of all pods, in pages.

    If the continue token expires, the list starts over, as a single page.

    Raises:
        Unreachable: an answer is missing or incomplete.
        AuditordError: the server refused the request.
    """
    token, limit = "", size
    while True:
        try:
            answer = _decode_list(await cluster.page(scope, limit, token), scope)
        except Expired:
            if not token:
                raise
            token, limit = "", 0
            continue
        pods = [PodEvent(item) for item in answer.items or ()]
        yield Page(pods, answer.metadata.resource_version, first=not token)
        token = answer.metadata.token
        if not token:
            return


def _decode_list(body: bytes, scope: str) -> _List:
    try:
        return _list.decode(body)
    except msgspec.DecodeError as error:
        raise Unreachable(f"{scope}: this is not a list of pods: {error}") from error


async def follow(
    cluster: Cluster, scope: str, version: str, limits: Limits, now: Callable[[], datetime]
) -> WatchResult:
    """Read events since a version, until one of the limits is reached.

    If the connection is lost before the first event, it is retried with growing pauses. It is closed on return.

    A server accepts versions that it has not reached yet, and then is silent until it reaches them. So if nothing
    arrives, the current version is looked up: that of a restored or rebuilt cluster is lower.

    Raises:
        Unreachable: every connection was lost before an event was read.
        AuditordError: the server refused the request.
    """
    result = WatchResult(version)
    async for attempt in stamina.retry_context(on=Unreachable, attempts=None, timeout=limits.patience):
        with attempt:
            await _read(cluster, scope, result, limits, now)
            silent = result.version == version and result.ended is not WatchEnd.EXPIRED
            if silent:
                current = _decode_list(await cluster.sample(scope), scope).metadata.resource_version
                if version.isdigit() and current.isdigit() and int(version) > int(current):
                    result.ended, result.known_until = WatchEnd.EXPIRED, None
    return result


async def _read(cluster: Cluster, scope: str, result: WatchResult, limits: Limits, now: Callable[[], datetime]) -> None:
    version = result.version
    try:
        async with cluster.watch(scope, version, limits.patience) as lines:
            await _read_lines(lines, result, scope, limits, now)
    except Expired:
        result.ended = WatchEnd.EXPIRED
    except Unreachable:
        if result.version == version:
            raise  # otherwise keep the events so far; the next call reads more


async def _read_lines(
    lines: AsyncIterator[bytes], result: WatchResult, scope: str, limits: Limits, now: Callable[[], datetime]
) -> None:
    while len(result.events) < limits.events:
        with anyio.move_on_after(limits.quiet.total_seconds()) as silence:
            waiting_since = anyio.current_time()
            line = await anext(lines, None)
            if line is None:
                result.ended = WatchEnd.CLOSED
                return
            if result.events and anyio.current_time() - waiting_since >= limits.pause.total_seconds():
                result.known_until = now()
            try:
                event = _event.decode(line)
                decoded = _object.decode(event.object)
            except msgspec.DecodeError as error:
                raise Unreachable(f"{scope}: this is not an event: {error}") from error
            if event.type == "ERROR":
                if decoded.code == HTTPStatus.GONE:
                    raise Expired(f"{scope}: {decoded.message}")
                raise AuditordError(f"{scope}: the API server ended the watch: {decoded.code} {decoded.message}")
            if event.type != "BOOKMARK":
                result.events.append(PodEvent(event.object, gone=event.type == "DELETED"))
            if decoded.metadata is not None and decoded.metadata.resource_version:
                result.version = decoded.metadata.resource_version
        if silence.cancelled_caught:
            result.ended, result.known_until = WatchEnd.QUIET, now()
            return
