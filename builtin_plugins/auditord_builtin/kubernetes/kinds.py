"""The declaration of the kind ``kubernetes``: what it is, what is asked of it for audits and by ``auditord doctor``."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Final

from auditord_builtin.kubernetes import connection
from auditord_builtin.kubernetes.collecting import collect
from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.conversion import convert
from auditord_builtin.kubernetes.detecting import detect
from auditord_builtin.kubernetes.importing import import_config
from auditord_builtin.kubernetes.tracking import Checkpoint
from auditord_hookspecs import AuditordError, CollectorContext, CollectorKind, Context, Reach
from auditord_hookspecs.checks import Finding, Severity, check_extra, check_readable
from auditord_hookspecs.mapping import remarks_on_sites
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
"""Its inventory is what is collected again for a period: the pods that are still there."""
