"""Collects the finished jobs of HTCondor and HTCondor-CE, under the ids, labels and components that AUDITOR uses.

``collecting`` is a run over schedds: ``reading`` asks for what is new and proves that nothing is missing, ``query``
calls ``condor_history``, ``printed`` cuts its output into ads, ``isolating`` asks around ads that end it. ``files`` and
``per_job`` read HTCondor's files instead. ``ads`` has the text of ads, ``evaluation`` their rows (by a child process),
``identity`` their names; ``classifying`` makes batches, ``conversion`` records. ``config`` has the options,
``importing`` reads AUDITOR's, ``kinds`` declares it, with what audits and ``auditord doctor`` ask.
"""

from collections.abc import Iterable
from functools import partial
from pkgutil import resolve_name
from typing import Any

from auditord_hookspecs import CollectorKind, Deferred, hookimpl


@hookimpl
def auditord_collectors() -> Iterable[Deferred[CollectorKind[Any]]]:  # Any: of each kind's model
    """The kind ``htcondor``."""
    yield Deferred("htcondor", partial(resolve_name, "auditord_builtin.htcondor.kinds:HTCONDOR"))
