"""Collects the finished jobs of Slurm clusters, under the ids, labels and components that AUDITOR uses."""

from collections.abc import Iterable
from datetime import timedelta

from auditord_builtin.slurm.collecting import JOBS_AT_ONCE, collect
from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.conversion import convert, job_of
from auditord_builtin.slurm.demo import replay
from auditord_builtin.slurm.epilog import SLURM_EPILOG, SlurmEpilogConfig
from auditord_builtin.slurm.importing import import_config
from auditord_hookspecs import CollectorKind, hookimpl
from auditord_hookspecs.mapping import remarks_on_sites

__all__ = ["SLURM", "SLURM_EPILOG", "SlurmConfig", "SlurmEpilogConfig", "auditord_collectors"]

SLURM = CollectorKind(
    name="slurm",
    config=SlurmConfig,
    collect=collect,
    interval=timedelta(minutes=5),
    timeout=timedelta(hours=1),
    convert=convert,
    import_config=import_config,
    one_job=True,
    job_of=job_of,
    jobs_at_once=JOBS_AT_ONCE,
    prefix=lambda config: config.record_prefix,
    remarks=lambda config: remarks_on_sites(config.sites),
    demo=replay,
)


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[SlurmConfig] | CollectorKind[SlurmEpilogConfig]]:
    """The kinds ``slurm`` and ``slurm_epilog``."""
    yield SLURM
    yield SLURM_EPILOG
