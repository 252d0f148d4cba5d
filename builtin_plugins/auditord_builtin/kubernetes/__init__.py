"""Collects the pods of Kubernetes clusters, with the same ids and labels as AUDITOR.

``collecting`` declares the kind and queries Prometheus for metrics. ``following`` lists and watches namespaces through
``reading``, and keeps the state between runs. ``pods`` parses pods, ``amounts`` sums up the resources that they hold,
and ``claims`` reads the devices of resource claims. ``conversion`` converts ended and (for ``open_records``) running
pods to records.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from auditord_hookspecs import (
    CollectorKind,
    Column,
    Deferred,
    Panel,
    PanelContext,
    PanelPart,
    Permission,
    Table,
    hookimpl,
)


@hookimpl
def auditord_collectors() -> Iterable[Deferred[CollectorKind[Any]]]:  # Any: of each kind's model
    yield Deferred.at("kubernetes", "auditord_builtin.kubernetes.collecting:KUBERNETES")


@hookimpl
def auditord_panels() -> Iterable[Panel]:
    yield Panel("kubernetes_state", "Kubernetes", show_state, "kubernetes", whole=True, permission=Permission.OPERATE)


async def show_state(context: PanelContext) -> Sequence[PanelPart]:
    """Return how far each namespace has been read, and how many pods are running or waiting for their metrics."""
    from auditord_builtin.kubernetes.following import Checkpoint, TrackedPods  # noqa: PLC0415 only the page needs it
    from auditord_hookspecs.outcomes import restore  # noqa: PLC0415 the same
    from auditord_hookspecs.panels import table_of_runs  # noqa: PLC0415 the same

    state = await context.state()
    if state is None:
        return ["It has not read anything yet."]
    pods = TrackedPods(await context.pending())
    scopes = restore(state, Checkpoint).scopes
    rows = [("all" if scope == "*" else scope, position.at) for scope, position in sorted(scopes.items())]
    return [
        f"Pods that run: {len(pods.running):,}. Pods that are over and wait for their metrics: {len(pods.waiting):,}.",
        Table([Column("Namespace"), Column("Known until")], rows),
        table_of_runs(await context.last_runs()),
    ]
