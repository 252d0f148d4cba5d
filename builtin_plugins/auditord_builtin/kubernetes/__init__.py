"""Collects the pods of Kubernetes clusters, under the ids, labels and components that AUDITOR uses.

``collecting`` is a run: ``following`` lists and watches namespaces (``connection`` to the API server, ``reading`` of
its answers), ``tracking`` is the state between runs, ``prometheus`` asks for the metrics of pods that are over.
``pods`` has a pod's JSON, ``runs`` the times of its containers, ``resources`` its amounts; ``classifying`` makes
batches, ``conversion`` records. ``config`` has the options, ``importing`` reads AUDITOR's, ``kinds`` declares
it, with what audits and ``auditord doctor`` ask, ``detecting`` for ``auditord init``.
"""

from collections.abc import Iterable
from functools import partial
from pkgutil import resolve_name
from typing import Any

from auditord_hookspecs import CollectorKind, Deferred, Panel, hookimpl


@hookimpl
def auditord_collectors() -> Iterable[Deferred[CollectorKind[Any]]]:  # Any: of each kind's model
    """The kind ``kubernetes``."""
    yield Deferred("kubernetes", partial(resolve_name, "auditord_builtin.kubernetes.kinds:KUBERNETES"))


@hookimpl
def auditord_panels() -> Iterable[Panel]:
    """The panel of each instance."""
    from auditord_builtin.kubernetes.panels import PANELS  # noqa: PLC0415 of the page alone

    return PANELS
