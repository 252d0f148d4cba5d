"""Collects the finished jobs of Slurm clusters, under the ids, labels and components that AUDITOR uses.

The way of a row of sacct to a record, file by file:

1. ``collecting``: what is due since the checkpoint, or is collected again; what is not known yet makes a batch.
2. ``query``: a period in calls of sacct, shorter ones where a limit is met; from the bytes that it prints to rows.
3. ``runs``: rows that belong to one run of a job, its state and its end; the runs that ended within the period.
4. ``merging``: one row of a run and its steps.
5. ``conversion``: a run becomes a record, is left out or goes to quarantine.

``epilog`` has the second kind, which reads notes of ended jobs; it asks slurmctld first and uses 2 to 5 for the rest.
``config`` has the options, ``importing`` reads AUDITOR's, ``inventory`` lists jobs for audits, ``kinds`` declares
both, with what ``auditord doctor`` looks at, ``detecting`` for ``auditord init``, ``demo`` plays a recorded sacct.
"""

from collections.abc import Iterable
from functools import partial
from pkgutil import resolve_name
from typing import Any

from auditord_hookspecs import CollectorKind, Deferred, Panel, Permission, hookimpl


@hookimpl
def auditord_collectors() -> Iterable[Deferred[CollectorKind[Any]]]:  # Any: of each kind's model
    """The kinds ``slurm`` and ``slurm_epilog``."""
    yield Deferred("slurm", partial(resolve_name, "auditord_builtin.slurm.kinds:SLURM"))
    yield Deferred("slurm_epilog", partial(resolve_name, "auditord_builtin.slurm.kinds:SLURM_EPILOG"))


@hookimpl
def auditord_panels() -> Iterable[Panel]:
    """The panel of each instance."""
    from auditord_builtin.slurm.collecting import show_state  # noqa: PLC0415 of the page alone

    yield Panel("slurm_state", "Slurm", show_state, "slurm", whole=True, permission=Permission.OPERATE)
