"""Collects Slurm jobs from the notes that ``auditord-epilog`` writes when they end.

``script`` is that program. ``collecting`` reads its folder and asks slurmctld about each noted job. ``rows`` parses the
answers. If they do not suffice, ``collecting`` asks sacct.
"""

from auditord_builtin.slurm.epilog.collecting import collect, convert
from auditord_builtin.slurm.epilog.config import import_config

__all__ = ["collect", "convert", "import_config"]
