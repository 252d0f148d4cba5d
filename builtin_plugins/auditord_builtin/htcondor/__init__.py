"""Collects the finished jobs of HTCondor and HTCondor-CE, with the same ids, labels and components as AUDITOR.

``collecting`` declares the kind and iterates over the schedds. ``reading`` reads each history from the last position,
with ``condor_history``, which ``query`` calls, and whose ``output`` is split into ads. ``history_files`` and
``job_files`` read HTCondor's files instead. ``ads`` parses ClassAds, ``evaluation`` evaluates expressions in a child
process, ``conversion`` converts ads to records, and ``choosing`` makes batches of them.
"""

from collections.abc import Iterable
from typing import Any

from auditord_hookspecs import CollectorKind, Deferred, hookimpl


@hookimpl
def auditord_collectors() -> Iterable[Deferred[CollectorKind[Any]]]:  # Any: of each kind's model
    yield Deferred.at("htcondor", "auditord_builtin.htcondor.collecting:HTCONDOR")
