"""Collects the finished jobs of Slurm clusters, under the ids, labels and components that AUDITOR uses."""

from collections.abc import Iterable
from datetime import timedelta

from auditord_builtin.slurm.collecting import collect
from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.conversion import convert
from auditord_builtin.slurm.demo import replay
from auditord_builtin.slurm.epilog import SLURM_EPILOG, SlurmEpilogConfig
from auditord_builtin.slurm.importing import import_config
from auditord_hookspecs import CollectorKind, hookimpl

__all__ = ["SLURM", "SLURM_EPILOG", "SlurmConfig", "SlurmEpilogConfig", "auditord_collectors"]

SLURM = CollectorKind(
    name="slurm",
    config=SlurmConfig,
    collect=collect,
    interval=timedelta(minutes=5),
    timeout=timedelta(hours=1),
    convert=convert,
    import_config=import_config,
    prefix=lambda config: config.record_prefix,
    demo=replay,
)


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[SlurmConfig] | CollectorKind[SlurmEpilogConfig]]:
    """The kinds ``slurm`` and ``slurm_epilog``."""
    yield SLURM
    yield SLURM_EPILOG
