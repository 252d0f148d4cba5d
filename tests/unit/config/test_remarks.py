"""Remarks of kinds on sections that are valid but hardly meant."""

from typing import Any

import pytest
from pydantic import ValidationError

from auditord.config.kinds import configuration_model, instance_models, remarks
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


SLURM = {"kind": "slurm", "sites": [{"name": "S"}]}
USER_CPU = [{"name": "Cores", "key": "NCPUS"}, {"name": "UserCPU", "key": "UserCPU", "key_type": "Time"}]


def undelivered(**sections: Any) -> list[str]:  # Any: as in a file
    configuration = configuration_model(instance_models(KINDS)).model_validate(
        {"state_dir": "/state", "store": {"url": "sqlite:///records.db"}, **sections}
    )
    return [remark for remark in remarks(configuration, KINDS) if remark.startswith("collectors: none delivers")]


def test_what_no_collector_delivers_is_named_with_what_needs_it() -> None:
    utilisation = {"kind": "utilisation"}
    recorded = {"slurm": {**SLURM, "components": USER_CPU}}
    assert undelivered(collectors={"slurm": SLURM}, plugins={"monthly": utilisation}) == []
    assert undelivered(collectors=recorded, plugins={"monthly": utilisation}) == [
        (
            "collectors: none delivers TotalCPU, needed by reports (cpu-hours, cpu-efficiency, idle-core-hours), "
            "plugins.monthly: add it to components"
        )
    ]
    assert undelivered(collectors={**recorded, "other": SLURM | {"record_prefix": "other"}}) == []
    drop = {"kind": "files", "folder": "/var/spool/jobs"}
    assert undelivered(collectors={**recorded, "drop": drop}) == []  # its records may have any components


@pytest.mark.parametrize(("name", "remarks"), [("CoreSeconds", 0), ("Threads", 1)])
def test_a_total_is_as_good_as_the_held_amount(name: str, remarks: int) -> None:
    rules = [{"name": name, "key": "CPUTimeRAW"}, {"name": "TotalCPU", "key": "TotalCPU", "key_type": "Time"}]
    pledge = {"site": "S", "amount": 8, "from": "2026-01-01", "to": "2027-01-01"}
    found = undelivered(collectors={"slurm": {**SLURM, "components": rules}}, pledges=[pledge])
    assert ["none delivers Cores or CoreSeconds" in each and "pledges" in each for each in found] == [True] * remarks


def test_rules_that_make_both_forms_are_refused_unless_they_have_conditions() -> None:
    both: list[dict[str, Any]] = [{"name": "Cores", "key": "NCPUS"}, {"name": "CoreSeconds", "key": "CPUTimeRAW"}]
    model = KINDS.collectors["slurm"].config
    with pytest.raises(ValidationError, match="Cores and CoreSeconds are two forms of one amount"):
        model.model_validate({"components": both})
    both[0]["only_if"] = {"key": "Partition", "matches": "whole"}
    model.model_validate({"components": both})
