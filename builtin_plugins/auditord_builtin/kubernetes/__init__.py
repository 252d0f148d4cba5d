"""Collects the pods of Kubernetes clusters, under the ids, labels and components that AUDITOR uses.

``collecting`` is a run: ``following`` lists and watches namespaces (``connection`` to the API server, ``reading`` of
its answers), ``tracking`` is the state between runs, ``prometheus`` asks for the metrics of pods that are over.
``pods`` has a pod's JSON, ``runs`` the times of its containers, ``resources`` its amounts; ``classifying`` makes
batches, ``conversion`` records. ``config`` has the options, ``importing`` reads AUDITOR's, ``inventory`` is for
audits and ``auditord doctor``, ``detecting`` for ``auditord init``.
"""

from collections.abc import Iterable
from typing import Any

from auditord_hookspecs import CollectorKind, Deferred, Panel, hookimpl


@hookimpl
def auditord_collectors() -> Iterable[Deferred[CollectorKind[Any]]]:  # Any: of each kind's model
    """The kind ``kubernetes``."""
    yield Deferred("kubernetes", _kubernetes)


def _kubernetes() -> CollectorKind[Any]:
    from auditord_builtin.kubernetes.kinds import KUBERNETES  # noqa: PLC0415 when it is configured

    return KUBERNETES


@hookimpl
def auditord_panels() -> Iterable[Panel]:
    """The panel of each instance."""
    from auditord_builtin.kubernetes.panels import PANELS  # noqa: PLC0415 of the page alone

    return PANELS
