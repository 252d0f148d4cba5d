"""Collects Slurm's jobs from the notes that ``auditord-epilog`` leaves at their ends.

``script`` is that program. ``collecting`` reads its folder, and asks slurmctld about each noted job, whose answers
``rows`` reads, and sacct where they do not suffice.
"""

from auditord_builtin.slurm.epilog.collecting import collect, convert
from auditord_builtin.slurm.epilog.config import import_config

__all__ = ["collect", "convert", "import_config"]
