"""Collects the pods of Kubernetes clusters, under the ids, labels and components that AUDITOR uses.

``collecting`` is a run: ``following`` lists and watches namespaces (``connection`` to the API server, ``reading`` of
its answers), ``tracking`` is the state between runs, ``prometheus`` asks for the metrics of pods that are over.
``pods`` has a pod's JSON, ``runs`` the times of its containers, ``resources`` its amounts; ``classifying`` makes
batches, ``conversion`` records. ``config`` has the options, ``importing`` reads AUDITOR's, ``inventory`` is for
audits and ``auditord doctor``, ``detecting`` for ``auditord init``.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from auditord_builtin.kubernetes.collecting import collect
from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.conversion import convert
from auditord_builtin.kubernetes.detecting import detect
from auditord_builtin.kubernetes.importing import import_config
from auditord_builtin.kubernetes.inventory import check, reach
from auditord_hookspecs import CollectorKind, hookimpl
from auditord_hookspecs.mapping import remarks_on_sites

__all__ = ["KUBERNETES", "KubernetesConfig", "auditord_collectors"]

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


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[KubernetesConfig]]:
    """The kind ``kubernetes``."""
    yield KUBERNETES
