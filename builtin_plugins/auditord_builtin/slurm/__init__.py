"""Collects the finished jobs of Slurm clusters, under the ids, labels and components that AUDITOR uses.

The way of a row of sacct to a record, file by file:

1. ``collecting``: what is due since the checkpoint, or is collected again.
2. ``reading``: the period in parts, shorter where a limit of sacct is met.
3. ``query``: the call of sacct for one part; ``table``: from its bytes to rows.
4. ``runs``: rows that belong to one run of a job, its state and its end.
5. ``classifying``: runs of the period that are not known yet; a batch of their outcomes.
6. ``conversion``: a run becomes a record, is left out or goes to quarantine; ``merge``: its rows become one.

``epilog`` has the second kind, which reads notes of ended jobs; it asks slurmctld first and uses 3 to 6 for the rest.
``config`` has the options, ``importing`` reads AUDITOR's, ``inventory`` lists jobs for audits, ``checking`` is for
``auditord doctor``, ``detecting`` for ``auditord init``, ``demo`` plays a recorded sacct.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
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
from auditord_hookspecs import Batch, CollectorContext, CollectorKind, ImportedConfig, Produced, Reach, Record, hookimpl
from auditord_hookspecs.checks import Check
from auditord_hookspecs.mapping import remarks_on_sites
from auditord_hookspecs.proposals import Detect

__all__ = ["SLURM", "SLURM_EPILOG", "SlurmConfig", "SlurmEpilogConfig", "auditord_collectors"]

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


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[SlurmConfig] | CollectorKind[SlurmEpilogConfig]]:
    """The kinds ``slurm`` and ``slurm_epilog``."""
    yield SLURM
    yield SLURM_EPILOG
