"""The declaration of the kind ``kubernetes``."""

from datetime import timedelta
from typing import Final

from auditord_builtin.kubernetes.collecting import collect
from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.conversion import convert
from auditord_builtin.kubernetes.detecting import detect
from auditord_builtin.kubernetes.importing import import_config
from auditord_builtin.kubernetes.inventory import check, reach
from auditord_hookspecs import CollectorKind
from auditord_hookspecs.mapping import remarks_on_sites

KUBERNETES: Final = CollectorKind(
    name="kubernetes",
    config=KubernetesConfig,
    collect=collect,
    interval=timedelta(seconds=30),
    timeout=timedelta(hours=1),
    convert=convert,
    import_config=import_config,
    prefix=lambda config: config.record_prefix,
    remarks=lambda config: remarks_on_sites(config.sites),
    inventory=collect,
    reach=reach,
    check=check,
    detect=detect,
)
"""Its inventory is what is collected again for a period: the pods that are still there."""
