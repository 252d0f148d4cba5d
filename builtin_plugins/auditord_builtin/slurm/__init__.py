"""Collects the finished jobs of Slurm clusters, under the ids, labels and components that AUDITOR uses.

From a row of sacct to a record:

1. ``collecting`` goes through the periods that are due since the checkpoint, or that are collected again.
2. ``query`` calls sacct, for shorter periods where a limit is met, and cuts its output into rows.
3. ``runs`` puts together the rows of one run of a job, and finds its state and its end.
4. ``conversion`` merges a run and its steps into one row, and turns it into a record, or a quarantined job.

``epilog`` is the second kind, ``slurm_epilog``. It reads notes of ended jobs, asks slurmctld first, and uses steps 2 to
4 for the rest. ``kinds`` declares both kinds.
"""

from collections.abc import Iterable
from typing import Any

from auditord_hookspecs import CollectorKind, Deferred, Panel, Permission, hookimpl


@hookimpl
def auditord_collectors() -> Iterable[Deferred[CollectorKind[Any]]]:  # Any: of each kind's model
    """Declare the kinds ``slurm`` and ``slurm_epilog``."""
    yield Deferred.at("slurm", "auditord_builtin.slurm.kinds:SLURM")
    yield Deferred.at("slurm_epilog", "auditord_builtin.slurm.kinds:SLURM_EPILOG")


@hookimpl
def auditord_panels() -> Iterable[Panel]:
    """Declare the panel of each instance."""
    from auditord_builtin.slurm.collecting import show_state  # noqa: PLC0415 of the page alone

    yield Panel("slurm_state", "Slurm", show_state, "slurm", whole=True, permission=Permission.OPERATE)
