"""Remarks of kinds on sections that are valid but hardly meant."""

import pytest

from auditord.config.kinds import remarks
from auditord.config.model import Configuration
from auditord.hooks import load_hooks
from auditord_hookspecs.mapping import SiteRule, remarks_on_sites

KINDS = load_hooks(()).kinds
NOWHERE = (SiteRule(name="NOT_CONFIGURED"),)
WITH_SITES = [
    name
    for name, kind in KINDS.collectors.items()
    if (field := kind.config.model_fields.get("sites")) is not None and field.default == NOWHERE
]


def test_every_kind_that_names_sites_is_looked_at() -> None:
    assert {"slurm", "slurm_epilog", "htcondor", "kubernetes"} <= set(WITH_SITES)


@pytest.mark.parametrize("name", WITH_SITES)
def test_a_kind_with_sites_remarks_that_none_is_named(name: str) -> None:
    kind = KINDS.collectors[name]
    assert kind.remarks is not None
    missing = kind.config.model_construct(sites=NOWHERE)
    assert ["sites is missing" in remark for remark in kind.remarks(missing)] == [True]
    assert list(kind.remarks(kind.config.model_construct(sites=(SiteRule(name="S"),)))) == []


def test_a_site_by_column_is_a_site() -> None:
    assert remarks_on_sites([SiteRule(key="Partition")]) == []
    assert remarks_on_sites([SiteRule(key="Partition"), SiteRule(name="NOT_CONFIGURED")]) != []


def test_very_many_labels_of_roll_ups_are_remarked_on() -> None:
    def told(count: int) -> list[str]:
        labels = [f"label-{number}" for number in range(count)]
        found = remarks(Configuration.model_validate({"state_dir": "/s", "store": {}, "ui": {"labels": labels}}), KINDS)
        return [each for each in found if each.startswith("ui.labels: ")]

    assert told(20) == []
    assert ["21 labels" in each for each in told(21)] == [True]
