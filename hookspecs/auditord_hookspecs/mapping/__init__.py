"""The conversion grammar that collectors share: from a row of texts to a record's site, labels and components.

A collector includes the rules in its configuration model and applies them to each job's row, a mapping from column
names to texts::

    class PrinterConfig(RunConfig):
        sites: tuple[SiteRule, ...] = (SiteRule(name="NOT_CONFIGURED"),)
        meta: tuple[MetaRule, ...] = ()
        components: tuple[ComponentRule, ...] = (ComponentRule(name="Pages", key="pages"),)

    components = build_components(config.components, {"pages": "12"})
"""

from auditord_hookspecs.mapping.building import (
    Labels,
    build_components,
    build_meta,
    build_owners,
    columns,
    find_site,
    holds,
    parse_labels,
)
from auditord_hookspecs.mapping.quantities import (
    PartialRow,
    Row,
    is_missing,
    is_zero,
    parse_duration,
    parse_energy,
    parse_instant,
    parse_number,
    parse_size,
    parse_time,
    sub_value,
)
from auditord_hookspecs.mapping.rules import (
    ComponentRule,
    Condition,
    KeyType,
    MetaRule,
    ScoreRule,
    SiteRule,
    auditor_preset,
    component_names,
    label_names,
    remarks_on_fractions,
    remarks_on_sites,
)

__all__ = [
    "ComponentRule",
    "Condition",
    "KeyType",
    "Labels",
    "MetaRule",
    "PartialRow",
    "Row",
    "ScoreRule",
    "SiteRule",
    "auditor_preset",
    "build_components",
    "build_meta",
    "build_owners",
    "columns",
    "component_names",
    "find_site",
    "holds",
    "is_missing",
    "is_zero",
    "label_names",
    "parse_duration",
    "parse_energy",
    "parse_instant",
    "parse_labels",
    "parse_number",
    "parse_size",
    "parse_time",
    "remarks_on_fractions",
    "remarks_on_sites",
    "sub_value",
]
