"""The collector's run: from the checkpoint on, or over a period again; then records whose wait for metrics is over."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime

import msgspec

from auditord_builtin.kubernetes import connection
from auditord_builtin.kubernetes.classifying import Draft, read_pods
from auditord_builtin.kubernetes.config import KubernetesConfig, Prometheus
from auditord_builtin.kubernetes.following import Run
from auditord_builtin.kubernetes.pods import Pod
from auditord_builtin.kubernetes.prometheus import CPU, MEMORY, Metrics, ask_all
from auditord_builtin.kubernetes.reading import Page, pages
from auditord_builtin.kubernetes.tracking import TrackedPods, WaitingPod
from auditord_hookspecs import AuditordError, Batch, CollectorContext, Window

_PER_BATCH = 500


async def collect(config: KubernetesConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Go on from the checkpoint; for a period that is collected again, look at the pods that are still there.

    Raises:
        AuditordError: the cluster, or a namespace of it, could not be read; the others were.
    """
    batches = _onwards(config, context) if context.window is None else _again(config, context, context.window)
    async for batch in batches:
        yield batch


async def _onwards(config: KubernetesConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    tracked = TrackedPods(await context.pending())
    fault: AuditordError | None = None
    try:
        async with connection.opened(config) as cluster:
            async for batch in Run(config, context, cluster, tracked).batches():
                yield batch
    except AuditordError as error:  # pods that only wait for metrics need no API server
        fault = error
    async for batch in _settle(config, context, tracked, at_once=context.dry_run):
        yield batch
    if fault is not None:
        raise fault


async def _again(config: KubernetesConfig, context: CollectorContext, window: Window) -> AsyncIterator[Batch]:
    """The pods of a period, without any memory: those that Kubernetes has removed are not to be had again."""
    async with connection.opened(config) as cluster:
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
    """The records of pods whose waiting is over. Whatever Prometheus does, this ends soon and raises nothing.

    ``at_once``: each pod is asked about once, and none waits any longer.
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
    """True if the record goes out: it has its metrics, or Prometheus was asked for long enough."""
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
