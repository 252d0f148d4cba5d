"""``InfrastructureDescription`` in APEL's form ``CLIENT-CE-BATCHSYSTEM`` (APEL-CREAM-PBS, for example).

The version of the client, which AUDITOR's plugin adds, is left out: it is no part of the form, and with each update
every month of a site would have to be sent again.
"""

from collections.abc import Iterable
from typing import Final

from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.fields import NOTHING, MetaField
from auditord_builtin.apel.text import clean_name

UNKNOWN: Final = "UNKNOWN"
"""A compute element or batch system that is not named, as AUDITOR's plugin writes it."""

LONGEST: Final = 100
_CLIENT: Final = "AUDITORD"


def batch_system_field(config: ApelConfig) -> MetaField | None:
    """The field of records that names their batch system, or None where records are not asked for it."""
    if config.site.ce is None or config.site.batch_system is not None:
        return None
    return MetaField(name=config.site.batch_system_meta_field)


def describe(config: ApelConfig, batch_systems: Iterable[str]) -> str | None:
    """The description of jobs of these batch systems; None where ``site.ce`` is null.

    Several are joined by a plus sign, in the order of their names: the description is no part of APEL's key.
    """
    if config.site.ce is None:
        return None
    named = {name for name in batch_systems if name != NOTHING} - {UNKNOWN}
    known = config.site.batch_system or "+".join(sorted(named)) or UNKNOWN
    return clean_name(f"{_CLIENT}-{config.site.ce}-{known}", LONGEST)
