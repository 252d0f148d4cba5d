"""What the host calls: a run from the checkpoint on, or one that looks at a period again."""

from collections.abc import AsyncIterator
from dataclasses import replace

from auditord_builtin.kubernetes import connection
from auditord_builtin.kubernetes.classifying import Draft, read_pods
from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.following import Run
from auditord_builtin.kubernetes.ledger import Ledger
from auditord_builtin.kubernetes.reading import Page, pages
from auditord_builtin.kubernetes.waiting import settle
from auditord_hookspecs import AuditordError, Batch, CollectorContext, Window


async def collect(config: KubernetesConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Go on from the checkpoint; for a period that is collected again, look at the pods that are still there.

    Raises:
        AuditordError: the cluster, or a namespace of it, could not be read; the others were.
    """
    batches = _onwards(config, context) if context.window is None else _again(config, context, context.window)
    async for batch in batches:
        yield batch


async def _onwards(config: KubernetesConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    ledger = Ledger(await context.pending())
    fault: AuditordError | None = None
    try:
        async with connection.opened(config) as cluster:
            async for batch in Run(config, context, cluster, ledger).batches():
                yield batch
    except AuditordError as error:  # pods that only wait for figures need no API server
        fault = error
    async for batch in settle(config, context, ledger, at_once=context.dry_run):
        yield batch
    if fault is not None:
        raise fault


async def _again(config: KubernetesConfig, context: CollectorContext, window: Window) -> AsyncIterator[Batch]:
    """The pods of a period, without any memory: those that Kubernetes has removed are not to be had again."""
    async with connection.opened(config) as cluster:
        for number, scope in enumerate(config.scopes, start=1):
            async for page in pages(cluster, scope, config.page_size):
                async for batch in _page_again(config, context, window, page):
                    yield batch
            context.report_progress(number / len(config.scopes))


async def _page_again(
    config: KubernetesConfig, context: CollectorContext, window: Window, page: Page
) -> AsyncIterator[Batch]:
    ledger = Ledger({})
    draft = Draft(config, ledger, (), context.now(), window)
    draft.take([(happening, pod) for happening, pod in read_pods(page.pods) if pod is None or pod.terminal])
    yield _forgetful(draft.batch())
    async for batch in settle(config, context, ledger, at_once=True):
        yield _forgetful(batch)


def _forgetful(batch: Batch) -> Batch:
    """What was collected again says nothing of how far the collector has come."""
    return replace(batch, seen={}, pending={}, checkpoint=None)
