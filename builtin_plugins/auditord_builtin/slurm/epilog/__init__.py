"""Collects Slurm's jobs from the notes that ``auditord-epilog`` leaves at their ends."""
