"""Collects Slurm's jobs from the notes that ``auditord-epilog`` leaves at their ends.

``script`` is that program; ``notes`` reads its folder; ``collecting`` settles what is noted: ``controller`` asks
slurmctld (``scontrol`` and ``rows`` read its answers), ``asking`` decides whether they suffice and asks sacct.
"""

from auditord_builtin.slurm.epilog.collecting import collect, convert
from auditord_builtin.slurm.epilog.config import import_config

__all__ = ["collect", "convert", "import_config"]
