"""The declarations of the kinds ``slurm`` and ``slurm_epilog``."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from auditord_builtin.slurm import epilog
from auditord_builtin.slurm.checking import check, check_epilog
from auditord_builtin.slurm.collecting import JOBS_AT_ONCE, collect
from auditord_builtin.slurm.config import JobsConfig, SlurmConfig
from auditord_builtin.slurm.conversion import convert, job_of
from auditord_builtin.slurm.demo import replay
from auditord_builtin.slurm.detecting import detect, detect_epilog
from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig
from auditord_builtin.slurm.importing import import_config
from auditord_builtin.slurm.inventory import list_jobs, reach, source_reach
from auditord_hookspecs import Batch, CollectorContext, CollectorKind, ImportedConfig, Produced, Reach, Record
from auditord_hookspecs.checks import Check
from auditord_hookspecs.mapping import remarks_on_sites
from auditord_hookspecs.proposals import Detect

C = TypeVar("C", bound=JobsConfig)


def _kind(
    name: str,
    config: type[C],
    *,
    collect: Callable[[C, CollectorContext], AsyncIterator[Batch]],
    convert: Callable[[C, Any], Record | Produced | None],  # Any: JSON from the quarantine
    import_config: Callable[[Mapping[str, Any]], ImportedConfig | None],  # Any: an operator's YAML
    interval: timedelta,
    reach: Callable[[C, CollectorContext], Awaitable[Reach]],
    check: Check,
    detect: Detect,
    demo: Callable[[], Mapping[str, Any]] | None = None,  # Any: options as a file would give them
) -> CollectorKind[C]:
    return CollectorKind(
        name=name,
        config=config,
        collect=collect,
        interval=interval,
        timeout=timedelta(hours=1),
        convert=convert,
        import_config=import_config,
        one_job=True,
        job_of=job_of,
        jobs_at_once=JOBS_AT_ONCE,
        prefix=lambda config: config.record_prefix,
        remarks=lambda config: remarks_on_sites(config.sites),
        inventory=list_jobs,
        reach=reach,
        check=check,
        detect=detect,
        demo=demo,
    )


SLURM: Final = _kind(
    "slurm",
    SlurmConfig,
    collect=collect,
    convert=convert,
    import_config=import_config,
    interval=timedelta(minutes=5),
    reach=reach,
    check=check,
    detect=detect,
    demo=replay,
)
SLURM_EPILOG: Final = _kind(
    "slurm_epilog",
    SlurmEpilogConfig,
    collect=epilog.collect,
    convert=epilog.convert,
    import_config=epilog.import_config,
    interval=timedelta(minutes=1),
    reach=source_reach,
    check=check_epilog,
    detect=detect_epilog,
)
