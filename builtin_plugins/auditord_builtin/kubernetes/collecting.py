"""The kind ``kubernetes``, and a run of it: new events first, then records whose wait for metrics is over."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from auditord_builtin.kubernetes.config import KubernetesConfig, Prometheus
from auditord_builtin.kubernetes.conversion import convert
from auditord_builtin.kubernetes.following import Checkpoint, Draft, Run, TrackedPods, WaitingPod, read_pods
from auditord_builtin.kubernetes.importing import detect, import_config
from auditord_builtin.kubernetes.pods import Pod
from auditord_builtin.kubernetes.prometheus import CPU, MEMORY, Metrics, ask_all
from auditord_builtin.kubernetes.reading import ALL, Cluster, Page, opened, pages
from auditord_hookspecs import AuditordError, Batch, CollectorContext, CollectorKind, Context, Reach, Window
from auditord_hookspecs.checks import Finding, Severity, check_extra, check_readable
from auditord_hookspecs.mapping import remarks_on_sites
from auditord_hookspecs.outcomes import restore

_PER_BATCH = 500


async def collect(config: KubernetesConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Continue from the checkpoint; or, for a period to collect again, list the existing pods.

    Raises:
        AuditordError: the cluster, or a namespace, could not be read; the others were.
    """
    batches = _onwards(config, context) if context.window is None else _again(config, context, context.window)
    async for batch in batches:
        yield batch


async def _onwards(config: KubernetesConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    tracked = TrackedPods(await context.pending())
    fault: AuditordError | None = None
    try:
        async with opened(config) as cluster:
            async for batch in Run(config, context, cluster, tracked).batches():
                yield batch
    except AuditordError as error:  # pods that wait for metrics need no API server
        fault = error
    async for batch in _settle(config, context, tracked, at_once=context.dry_run):
        yield batch
    if fault is not None:
        raise fault


async def _again(config: KubernetesConfig, context: CollectorContext, window: Window) -> AsyncIterator[Batch]:
    """Yield the pods of a period, without saved state. Pods that Kubernetes has removed cannot be collected again."""
    async with opened(config) as cluster:
        for number, scope in enumerate(config.scopes, start=1):
            async for page in pages(cluster, scope, config.page_size):
                async for batch in _page_again(config, context, window, page):
                    yield replace(batch, seen={}, pending={}, checkpoint=None)
            context.report_progress(number / len(config.scopes))


async def _page_again(
    config: KubernetesConfig, context: CollectorContext, window: Window, page: Page
) -> AsyncIterator[Batch]:
    tracked = TrackedPods({})
    draft = Draft(config, tracked, (), context.now(), window)
    draft.take(
        [(happening, pod) for happening, pod in read_pods(page.pods) if not isinstance(pod, Pod) or pod.terminal]
    )
    yield draft.batch()
    async for batch in _settle(config, context, tracked, at_once=True):
        yield batch


async def _settle(
    config: KubernetesConfig, context: CollectorContext, tracked: TrackedPods, *, at_once: bool
) -> AsyncIterator[Batch]:
    """Yield the records of pods that have waited for metrics. Errors of Prometheus neither raise nor block.

    ``at_once``: ask about each pod once, and wait no longer.
    """
    now, options = context.now(), config.prometheus
    if options is not None:
        due = [one for one in tracked.waiting.values() if one.due <= now and not _enough(options, one, now)]
        await _ask(options, context, tracked, due)
    ready = [one for one in tracked.waiting.values() if at_once or _enough(options, one, now)]
    for start in range(0, len(ready), _PER_BATCH):
        yield _batch(config, context, tracked, ready[start : start + _PER_BATCH])
    if changes := tracked.changes():
        yield Batch(pending=changes)


async def _ask(options: Prometheus, context: CollectorContext, tracked: TrackedPods, due: Sequence[WaitingPod]) -> None:
    if not due:
        return
    answers, trouble = await ask_all(context, options, [one.finished for one in due])
    if trouble:
        context.log.warning("%s; %d pods wait for their metrics", trouble, len(tracked.waiting))
    complaints = [each.complaint for each in answers.values() if each.complaint]
    if complaints:
        context.log.warning("no metrics of %d pods: %s", len(complaints), complaints[0])
    for one in due:
        if (answer := answers.get(one.finished.pod.uid)) is not None:
            tracked.wait(_asked(options, one, answer, context.now()))


def _asked(options: Prometheus, waiting: WaitingPod, answer: Metrics, now: datetime) -> WaitingPod:
    finished = msgspec.structs.replace(waiting.finished, metrics=dict(answer.found))
    return WaitingPod(finished, waiting.since, now + options.pause, waiting.attempts + 1)


def _enough(options: Prometheus | None, waiting: WaitingPod, now: datetime) -> bool:
    """Return True if the record is final: it has its metrics, or Prometheus was asked for long enough."""
    if options is None or {CPU, MEMORY} <= set(waiting.finished.metrics):
        return True
    return waiting.attempts >= options.attempts or now - waiting.since >= options.patience


def _batch(
    config: KubernetesConfig, context: CollectorContext, tracked: TrackedPods, ready: Sequence[WaitingPod]
) -> Batch:
    draft = Draft(config, tracked, (), context.now(), Window(context.now(), context.now()))
    for one in ready:
        draft.emit(one.finished)
        tracked.settle(one.finished.pod.uid)
    return draft.batch()


async def reach(config: KubernetesConfig, context: CollectorContext) -> Reach:
    """Return since when the collector was to read pods. Kubernetes keeps none for long, so none is ever extra."""
    if context.checkpoint is None:
        return Reach(context.now(), config.earliest_datetime or context.now())
    return Reach(context.now(), restore(context.checkpoint, Checkpoint).since)


async def check(config: KubernetesConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Check the library, the connection to the cluster, and the permission to list each namespace's pods."""
    library = check_extra("kubernetes_asyncio", "kubernetes")
    yield library
    if config.kubeconfig is not None:
        yield check_readable(config.kubeconfig, "name another file as kubeconfig")
    if library.severity is not Severity.OK:
        return
    context.log.debug("listing one pod of each namespace")
    try:
        async with opened(config) as cluster:
            for scope in config.scopes:
                yield await _check_scope(cluster, scope)
    except AuditordError as error:
        yield Finding(Severity.FAILURE, "cluster", str(error), "see kubeconfig and kube_context")


async def _check_scope(cluster: Cluster, scope: str) -> Finding:
    subject = "all namespaces" if scope == ALL else f"namespace {scope}"
    try:
        await cluster.page(scope, 1, "")
    except AuditordError as error:
        return Finding(Severity.FAILURE, subject, str(error), "may this account list and watch pods there?")
    return Finding(Severity.OK, subject, "pods can be listed")


KUBERNETES: Final = CollectorKind(
    name="kubernetes",
    config=KubernetesConfig,
    collect=collect,
    interval=timedelta(seconds=30),
    timeout=timedelta(hours=1),
    convert=convert,
    import_config=import_config,
    prefix=lambda config: config.record_prefix,
    remarks=lambda config: remarks_on_sites(config.sites),
    inventory=collect,
    reach=reach,
    check=check,
    detect=detect,
)
"""The inventory of a period is what would be collected again: the existing pods."""
