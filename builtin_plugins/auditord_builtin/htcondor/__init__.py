"""Collects the finished jobs of HTCondor and HTCondor-CE, under the ids, labels and components that AUDITOR uses.

``collecting`` declares the kind and goes through the schedds. ``reading`` reads each history from its last position:
with ``condor_history``, which ``query`` calls, or from HTCondor's files. ``ads`` reads the text of ClassAds,
``evaluation`` evaluates expressions in a child process, and ``conversion`` turns ads into records.
"""

from collections.abc import Iterable
from typing import Any

from auditord_hookspecs import CollectorKind, Deferred, hookimpl


@hookimpl
def auditord_collectors() -> Iterable[Deferred[CollectorKind[Any]]]:  # Any: of each kind's model
    """Declare the kind ``htcondor``."""
    yield Deferred.at("htcondor", "auditord_builtin.htcondor.collecting:HTCONDOR")
