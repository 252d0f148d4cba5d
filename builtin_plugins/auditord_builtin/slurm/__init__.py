"""Collects the finished jobs of Slurm clusters, with the same ids, labels and components as AUDITOR.

The path from a row of sacct to a record:

1. ``collecting`` iterates over the periods that are due since the checkpoint, or that are being collected again.
2. ``query`` calls sacct, for a shorter period if a limit was exceeded, and splits its output into rows.
3. ``runs`` groups the rows of each run of a job, and determines its state and end.
4. ``conversion`` merges a run and its steps into one row, with the CPU time and energy that Slurm measured, and
   converts it to a record or a quarantined job.

``inventory`` lists the jobs of a period for audits. ``epilog`` implements the second kind, ``slurm_epilog``. It reads
notes about ended jobs, asks slurmctld first, and uses steps 2 to 4 for the rest. ``kinds`` declares both kinds.
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
    """Declare the panel that each instance of ``slurm`` has."""
    from auditord_builtin.slurm.collecting import show_state  # noqa: PLC0415 only the page needs it

    yield Panel("slurm_state", "Slurm", show_state, "slurm", whole=True, permission=Permission.OPERATE)
