"""The reach of an audit of pods, and checks of what a section refers to.

The inventory itself is what is collected again: pods that Kubernetes has removed are not in it.
"""

from collections.abc import AsyncGenerator

from auditord_builtin.kubernetes import connection
from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.tracking import Checkpoint
from auditord_hookspecs import AuditordError, CollectorContext, Context, Reach
from auditord_hookspecs.checks import Finding, Severity, check_extra, check_readable
from auditord_hookspecs.outcomes import restore


async def reach(config: KubernetesConfig, context: CollectorContext) -> Reach:
    """Tell since when the collector was to read pods; Kubernetes remembers none for long, so none is ever extra."""
    if context.checkpoint is None:
        return Reach(context.now(), config.earliest_datetime or context.now())
    return Reach(context.now(), restore(context.checkpoint, Checkpoint).since)


async def check(config: KubernetesConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Look at the library, the way to the cluster, and whether pods of each namespace may be listed."""
    library = check_extra("kubernetes_asyncio", "kubernetes")
    yield library
    if config.kubeconfig is not None:
        yield check_readable(config.kubeconfig, "name another file as kubeconfig")
    if library.severity is not Severity.OK:
        return
    context.log.debug("listing one pod of each namespace")
    try:
        async with connection.opened(config) as cluster:
            for scope in config.scopes:
                yield await _check_scope(cluster, scope)
    except AuditordError as error:
        yield Finding(Severity.FAILURE, "cluster", str(error), "see kubeconfig and kube_context")


async def _check_scope(cluster: connection.Cluster, scope: str) -> Finding:
    subject = "all namespaces" if scope == connection.ALL else f"namespace {scope}"
    try:
        await cluster.page(scope, 1, "")
    except AuditordError as error:
        return Finding(Severity.FAILURE, subject, str(error), "may this account list and watch pods there?")
    return Finding(Severity.OK, subject, "pods can be listed")
