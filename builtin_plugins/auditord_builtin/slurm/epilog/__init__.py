"""Collects Slurm jobs from the notes that ``auditord-epilog`` writes when they end.

``script`` is that program. ``notes`` reads its folder. ``asking`` asks slurmctld about each noted job or, if the answer
does not suffice, sacct. ``rows`` parses slurmctld's answers, and ``collecting`` makes the batches.
"""

from auditord_builtin.slurm.epilog.collecting import collect, convert
from auditord_builtin.slurm.epilog.config import import_config

__all__ = ["collect", "convert", "import_config"]
