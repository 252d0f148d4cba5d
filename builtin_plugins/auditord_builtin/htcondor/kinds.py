"""The declaration of the kind ``htcondor``."""

from datetime import timedelta

from auditord_builtin.htcondor.collecting import collect
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import convert
from auditord_builtin.htcondor.detecting import detect
from auditord_builtin.htcondor.importing import import_config
from auditord_builtin.htcondor.inventory import check, list_jobs, reach
from auditord_hookspecs import CollectorKind
from auditord_hookspecs.mapping import remarks_on_sites

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
"""The history is asked every quarter of an hour; one job can be asked for by its id."""
