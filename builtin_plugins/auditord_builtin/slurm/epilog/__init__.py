"""Collects Slurm's jobs from the notes that ``auditord-epilog`` leaves at their ends."""

from datetime import timedelta
from typing import Final

from auditord_builtin.slurm.collecting import JOBS_AT_ONCE
from auditord_builtin.slurm.conversion import job_of
from auditord_builtin.slurm.epilog.collecting import collect, convert
from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig
from auditord_builtin.slurm.epilog.importing import import_config
from auditord_hookspecs import CollectorKind
from auditord_hookspecs.mapping import remarks_on_sites

__all__ = ["SLURM_EPILOG", "SlurmEpilogConfig"]

SLURM_EPILOG: Final = CollectorKind(
    name="slurm_epilog",
    config=SlurmEpilogConfig,
    collect=collect,
    interval=timedelta(minutes=1),
    timeout=timedelta(hours=1),
    convert=convert,
    import_config=import_config,
    one_job=True,
    job_of=job_of,
    jobs_at_once=JOBS_AT_ONCE,
    prefix=lambda config: config.record_prefix,
    remarks=lambda config: remarks_on_sites(config.sites),
)
