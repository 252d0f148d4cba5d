"""Collects the finished jobs of Slurm clusters, under the ids, labels and components that AUDITOR uses.

The way of a row of sacct to a record, file by file:

1. ``collecting``: what is due since the checkpoint, or is collected again.
2. ``reading``: the period in parts, shorter where a limit of sacct is met.
3. ``query``: the call of sacct for one part, from its bytes to rows.
4. ``runs``: rows that belong to one run of a job, its state and its end; its rows become one.
5. ``classifying``: runs of the period that are not known yet; a batch of their outcomes.
6. ``conversion``: a run becomes a record, is left out or goes to quarantine.

``epilog`` has the second kind, which reads notes of ended jobs; it asks slurmctld first and uses 3 to 6 for the rest.
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
