"""The kind ``kubernetes``. A run reads new events, then emits the records that have waited long enough for metrics.

CPU time and peak memory come from Prometheus. If it is down, slow or misconfigured, records wait for a limited time.
"""

import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from http import HTTPStatus
from operator import attrgetter
from typing import Final

import anyio
import msgspec
from msgspec.structs import replace

from auditord_builtin.kubernetes.config import KubernetesConfig, Prometheus, detect, find_remarks, import_config
from auditord_builtin.kubernetes.conversion import OWN_LABELS, PodToConvert, convert
from auditord_builtin.kubernetes.following import (
    PAGE_SIZE,
    Checkpoint,
    Draft,
    Run,
    TrackedPods,
    WaitingPod,
    read_missing_claims,
    read_pods,
)
from auditord_builtin.kubernetes.pods import Pod, if_known
from auditord_builtin.kubernetes.reading import ALL, open_cluster, pages
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    CollectorKind,
    Context,
    HttpClient,
    HttpOptions,
    InvalidHttpAnswer,
    Reach,
    Window,
)
from auditord_hookspecs.checks import Finding, Severity, check_extra, check_readable
from auditord_hookspecs.http import HttpError
from auditord_hookspecs.mapping import component_names, label_names
from auditord_hookspecs.outcomes import restore
from auditord_hookspecs.vocabulary import OUTCOME

CPU: Final = "prometheus.cpu"
MEMORY: Final = "prometheus.memory"
_AT_ONCE: Final = 4
_ATTEMPTS: Final = 3
"""After this many answers without a value, a record is sent without it: the scrape that would have it is over."""
_PAUSE: Final = timedelta(minutes=5)
_TIME_PER_RUN: Final = timedelta(seconds=20)
_PASSING: Final = frozenset({"timeout", "unavailable", "canceled"})
_MAX_BODY: Final = 1024 * 1024


class Away(AuditordError):
    """Prometheus does not answer at the moment.

    Remedy:
        check that the server in the collector's option `prometheus` is running and can be reached from this host; pods
            wait for their values for up to its `patience`.
    """


class _Refused(AuditordError):
    """Prometheus refuses the query, and a retry would not help."""


class Metrics(msgspec.Struct, frozen=True):
    """The metrics of a pod as texts by column, and Prometheus' reason if some are missing."""

    found: Mapping[str, str]
    complaint: str | None = None


class _Sample(msgspec.Struct):
    value: tuple[float, str]


class _Data(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: msgspec.Raw = msgspec.Raw(b"[]")


class _Answer(msgspec.Struct, rename="camel"):
    status: str
    data: _Data = msgspec.field(default_factory=_Data)
    error_type: str = ""
    error: str = ""


async def ask_all(
    context: CollectorContext, options: Prometheus, wanted: Sequence[PodToConvert]
) -> tuple[Mapping[str, Metrics], str | None]:
    """Return the metrics of pods by uid, and the error that stopped the queries, if any.

    Stops after a while; the next run continues. Errors of Prometheus never raise.
    """
    answers, trouble = dict[str, Metrics](), list[str]()
    waiting = list(reversed(wanted))
    token = options.token.get_secret_value() if options.token else None
    http = HttpOptions(
        tls=options.tls,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=options.timeout,
        connections=_AT_ONCE,
        max_answer=_MAX_BODY,
        attempts=1,  # the next run retries
    )

    async def work(client: HttpClient) -> None:
        while waiting and not trouble:
            finished = waiting.pop()
            try:
                found, complaints = dict(finished.metrics), list[str]()
                for column, query in ((CPU, options.cpu_query), (MEMORY, options.memory_query)):
                    try:
                        value = found.get(column) or await _value(client, options, query, finished)
                    except _Refused as error:
                        complaints.append(str(error))
                        continue
                    if value is not None:
                        found[column] = value
                answers[finished.pod.uid] = Metrics(found, complaints[0] if complaints else None)
            except Away as error:
                trouble.append(str(error))

    try:
        with anyio.move_on_after(_TIME_PER_RUN.total_seconds()):
            async with context.http(http) as client, anyio.create_task_group() as group:
                for _ in range(_AT_ONCE):
                    group.start_soon(work, client)
    except AuditordError as error:
        trouble.append(f"prometheus: {error}")
    return answers, trouble[0] if trouble else None


async def _value(client: HttpClient, options: Prometheus, query: str, finished: PodToConvert) -> str | None:
    """Return the value of a query; None if there is no value, or if it is negative or not finite."""
    params = [("query", fill_in(query, finished)), ("time", f"{_stop(finished).timestamp():.3f}")]
    try:
        answer = await client.request("GET", f"{options.url}/api/v1/query", params=params)
    except InvalidHttpAnswer as error:
        raise _Refused(str(error)) from error
    except HttpError as error:
        raise Away(f"Prometheus does not answer: {error}") from error
    status, is_broken = answer.status, answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    try:
        decoded = msgspec.json.decode(answer.body, type=_Answer)
    except msgspec.DecodeError as error:
        if is_broken or status == HTTPStatus.TOO_MANY_REQUESTS:
            raise Away(f"Prometheus answers {status}") from error
        if target := answer.headers.get("Location"):
            raise Away(f"Prometheus answers {status} and redirects to {target}: set url to that address") from error
        raise _Refused(f"Prometheus answers {status} without JSON: {answer.body[:100]!r}") from error
    if decoded.status != "success":
        text = f"Prometheus answers {status}: {decoded.error_type}: {decoded.error[:200]}"
        raise Away(text) if is_broken or decoded.error_type in _PASSING else _Refused(text)
    data = decoded.data
    try:
        numbers = [float(sample.value[1]) for sample in msgspec.json.decode(data.result, type=list[_Sample])]
    except (msgspec.DecodeError, ValueError) as error:
        raise _Refused(f"the query must return a vector, not {data.result_type or 'something else'}") from error
    if len(numbers) > 1:
        raise _Refused(f"the query returns {len(numbers)} values for one pod: sum them up in the query")
    return f"{Decimal(numbers[0]):.6f}" if numbers and math.isfinite(numbers[0]) and numbers[0] >= 0 else None


def fill_in(query: str, finished: PodToConvert) -> str:
    """Replace ``{namespace}``, ``{podname}``, ``{uid}``, ``{node}`` and ``{seconds}`` (the pod's time) in a query."""
    pod = finished.pod
    start = if_known(pod.status.start_time) or _stop(finished)
    texts = {
        "namespace": pod.metadata.namespace,
        "podname": pod.metadata.name,
        "uid": pod.uid,
        "node": pod.spec.node_name or "",
        "seconds": str(max(1, math.ceil((_stop(finished) - start) / timedelta(seconds=1)) + 1)),
    }
    escaped = {name: text.replace("\\", "\\\\").replace('"', '\\"') for name, text in texts.items()}
    for name, text in escaped.items():
        query = query.replace(f"{{{name}}}", text)
    return query


def _stop(finished: PodToConvert) -> datetime:
    if finished.stop is None:
        raise AuditordError("an open record has no metrics")
    return finished.stop


async def collect(config: KubernetesConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Continue from the checkpoint or, if a window is given, collect again the pods that still exist.

    Raises:
        AuditordError: the cluster or a namespace could not be read. The other namespaces were.
    """
    if context.window is not None:
        async for batch in _read_window(config, context, context.window):
            yield batch
        return
    tracked = TrackedPods(await context.pending())
    fault: AuditordError | None = None
    try:
        async with open_cluster(config) as cluster:
            async for batch in Run(config, context, cluster, tracked).batches():
                yield batch
    except AuditordError as error:  # raise later, since pods that wait for metrics need no API server
        fault = error
    async for batch in _settle(config, context, tracked, at_once=context.dry_run):
        yield batch
    if fault is not None:
        raise fault


async def _read_window(config: KubernetesConfig, context: CollectorContext, window: Window) -> AsyncIterator[Batch]:
    """Yield the pods that ended within a window, without saved state. Pods removed from Kubernetes are missing.

    Pods that wait for their metrics are left to a later run. A record without metrics would forestall theirs.
    """
    waiting = TrackedPods(await context.pending()).waiting
    stops = (each.finished.stop for each in waiting.values())
    if left := sum(stop is not None and window.start <= stop < window.stop for stop in stops):
        yield Batch(skipped={"waits for its metrics": left})
    async with open_cluster(config) as cluster:
        for number, scope in enumerate(config.scopes, start=1):
            async for page in pages(cluster, scope, PAGE_SIZE):
                tracked = TrackedPods({})
                draft = Draft(config, tracked, waiting, context.now(), window)
                ended = [each for each in read_pods(page.pods) if not isinstance(each[1], Pod) or each[1].terminal]
                draft.take(ended, await read_missing_claims(cluster, tracked, ended, waiting), context.now())
                draft.warn(context)
                yield replace(draft.batch(), seen={}, pending={})
                async for batch in _settle(config, context, tracked, at_once=True):
                    yield replace(batch, seen={}, pending={})
            context.report_progress(number / len(config.scopes))


async def _settle(
    config: KubernetesConfig, context: CollectorContext, tracked: TrackedPods, *, at_once: bool
) -> AsyncIterator[Batch]:
    """Query metrics for waiting pods, and yield the records of those that are ready. Errors of Prometheus never raise.

    With ``at_once``, all records are emitted after a single query per pod.
    """
    now, options = context.now(), config.prometheus
    if options is not None:
        for pod in list(tracked.waiting.values()):
            if max(pod.since, pod.due - _PAUSE) > now:  # the clock was ahead
                tracked.wait(msgspec.structs.replace(pod, since=min(pod.since, now), due=now))
        due = [pod for pod in tracked.waiting.values() if pod.due <= now and not _enough(options, pod, now)]
        await _ask_due(options, context, tracked, due)
    ready = [pod for pod in tracked.waiting.values() if at_once or _enough(options, pod, now)]
    for start in range(0, len(ready), PAGE_SIZE):
        draft = Draft(config, tracked, (), context.now(), Window(context.now(), context.now()))
        for waiting in ready[start : start + PAGE_SIZE]:
            draft.emit(waiting.finished)
            tracked.settle(waiting.finished.pod.uid)
        yield draft.batch()
    if changes := tracked.changes():
        yield Batch(pending=changes)


async def _ask_due(
    options: Prometheus, context: CollectorContext, tracked: TrackedPods, due: Sequence[WaitingPod]
) -> None:
    if not due:
        return
    answers, trouble = await ask_all(context, options, [pod.finished for pod in due])
    if trouble:
        context.log.warning("%s; %d pods wait for their metrics", trouble, len(tracked.waiting))
    complaints = [each.complaint for each in answers.values() if each.complaint]
    if complaints:
        context.log.warning("no metrics for %d pods: %s", len(complaints), complaints[0])
    for waiting in due:
        if (answer := answers.get(waiting.finished.pod.uid)) is not None:
            finished = msgspec.structs.replace(waiting.finished, metrics=dict(answer.found))
            tracked.wait(WaitingPod(finished, waiting.since, context.now() + _PAUSE, waiting.attempts + 1))


def _enough(options: Prometheus | None, waiting: WaitingPod, now: datetime) -> bool:
    """Return True if the pod has all metrics, or has used up its attempts or its patience."""
    if options is None or {CPU, MEMORY} <= set(waiting.finished.metrics):
        return True
    return waiting.attempts >= _ATTEMPTS or now - waiting.since >= options.patience


async def reach(config: KubernetesConfig, context: CollectorContext) -> Reach:
    """Return since when the collector reads pods. Kubernetes removes pods soon, so none ever counts as extra."""
    if context.checkpoint is None:
        return Reach(context.now(), config.earliest_datetime or context.now())
    return Reach(context.now(), restore(context.checkpoint, Checkpoint).since)


async def check(config: KubernetesConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Check the library, the connection to the cluster, and the permission to list pods in each namespace."""
    library = check_extra("kubernetes_asyncio", "kubernetes")
    yield library
    if config.kubeconfig is not None:
        yield check_readable(config.kubeconfig, "name another file as kubeconfig")
    if library.severity is not Severity.OK:
        return
    context.log.debug("listing one pod of each namespace")
    try:
        async with open_cluster(config) as cluster:
            for scope in config.scopes:
                subject = "all namespaces" if scope == ALL else f"namespace {scope}"
                try:
                    await cluster.page(scope, 1, "")
                except AuditordError as error:
                    remedy = "can this account list and watch pods there?"
                    yield Finding(Severity.FAILURE, subject, str(error), remedy)
                else:
                    yield Finding(Severity.OK, subject, "pods can be listed")
    except AuditordError as error:
        yield Finding(Severity.FAILURE, "cluster", str(error), "check kubeconfig and kube_context")


KUBERNETES: Final = CollectorKind(
    name="kubernetes",
    config=KubernetesConfig,
    collect=collect,
    interval=timedelta(seconds=30),
    convert=convert,
    import_config=import_config,
    prefix=attrgetter("record_prefix"),
    remarks=find_remarks,
    provides=component_names,
    labels=lambda config: label_names(config.meta, (*OWN_LABELS, OUTCOME)),
    inventory=collect,
    reach=reach,
    check=check,
    detect=detect,
)
