"""Collects the finished jobs of HTCondor and HTCondor-CE, under the ids, labels and components that AUDITOR uses.

``collecting`` is a run over schedds: ``reading`` asks for what is new and proves that nothing is missing, ``query``
calls ``condor_history``, ``printed`` cuts its output into ads, ``isolating`` asks around ads that end it. ``files`` and
``per_job`` read HTCondor's files instead. ``ads`` has the text of ads, ``evaluation`` their rows (by a child process),
``identity`` their names; ``classifying`` makes batches, ``conversion`` records. ``config`` has the options,
``importing`` reads AUDITOR's, ``inventory`` is for audits and ``auditord doctor``.
"""

from collections.abc import Iterable
from datetime import timedelta

from auditord_builtin.htcondor.collecting import collect
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import convert
from auditord_builtin.htcondor.detecting import detect
from auditord_builtin.htcondor.importing import import_config
from auditord_builtin.htcondor.inventory import check, list_jobs, reach
from auditord_hookspecs import CollectorKind, hookimpl
from auditord_hookspecs.mapping import remarks_on_sites

__all__ = ["HTCONDOR", "HTCondorConfig", "auditord_collectors"]

HTCONDOR = CollectorKind(
    name="htcondor",
    config=HTCondorConfig,
    collect=collect,
    interval=timedelta(minutes=15),
    timeout=timedelta(hours=1),
    convert=convert,
    import_config=import_config,
    one_job=True,
    prefix=lambda config: config.record_prefix,
    remarks=lambda config: remarks_on_sites(config.sites),
    inventory=list_jobs,
    reach=reach,
    check=check,
    detect=detect,
)


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[HTCondorConfig]]:
    """The kind ``htcondor``."""
    yield HTCONDOR
