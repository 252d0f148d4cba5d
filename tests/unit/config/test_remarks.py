"""Remarks of kinds on sections that are valid but hardly meant."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from auditord.config.kinds import InstalledKinds, configuration_model, instance_models, remarks
from auditord.config.model import Configuration
from auditord.hooks import load_hooks
from auditord_hookspecs import InstanceConfig, TransformKind
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


def remarked(kinds: InstalledKinds = KINDS, **sections: Any) -> list[str]:  # Any: as in a file
    configuration = configuration_model(instance_models(kinds)).model_validate(
        {"state_dir": "/state", "store": {"url": "sqlite:///records.db"}, **sections}
    )
    return remarks(configuration, kinds)


def undelivered(**sections: Any) -> list[str]:  # Any: as in a file
    return [remark for remark in remarked(**sections) if remark.startswith("collectors: none delivers")]


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


APEL: dict[str, Any] = {
    "kind": "apel",
    "site": {"sites_to_report": {"EXAMPLE-SITE": ["S"]}, "publish_since": "2026-01-01T00:00:00Z"},
    "messaging": {"client_cert": "/cert.pem", "client_key": "/key.pem"},
    "summary_fields": {
        "mandatory": {
            "VO": {"type": "MetaField", "name": ["voms", "vo"]},
            "SubmitHost": {"type": "MetaField", "name": "submit_host"},
        }
    },
}
VOMS = {"name": "voms", "key": "Comment", "key_type": "String"}
HOST = {"name": "submit_host", "value": "ce1.example.org"}


def unmade(
    *meta: dict[str, Any],
    apel: dict[str, Any] = APEL,
    kinds: InstalledKinds = KINDS,
    transforms: dict[str, Any] = {},  # noqa: B006 only read
    **collectors: Any,  # Any: as in a file
) -> list[str]:
    collectors = {"slurm": {**SLURM, "meta": meta}, **collectors}
    found = remarked(kinds, collectors=collectors, plugins={"apel": apel}, transforms=transforms)
    return [each.partition(": add it")[0] for each in found if "no collector makes the label" in each]


def test_mandatory_labels_that_no_collector_makes_are_named() -> None:
    vo, host = (f"plugins.apel: no collector makes the label {names}" for names in ("voms or vo", "submit_host"))
    assert unmade() == [vo, host]
    assert unmade(VOMS) == [host]
    assert unmade({**VOMS, "name": "vo"}, HOST) == []
    by_site = {**APEL, "site": {**APEL["site"], "site_meta_field": "centre"}}
    assert unmade(VOMS, HOST, apel=by_site) == ["plugins.apel: no collector makes the label centre"]
    jobs: dict[str, Any] = {**APEL, "message_type": "individual_jobs", "individual_job_fields": {}}
    assert unmade(apel=jobs) == []  # a VO is optional there


class Added(InstanceConfig):
    names: tuple[str, ...]


@pytest.mark.parametrize("is_declared", [True, False])
def test_labels_that_a_transform_adds_or_may_add_are_not_missed(*, is_declared: bool) -> None:
    def list_added(config: Added) -> Sequence[str]:
        return config.names

    kind = TransformKind("add", Added, lambda _: lambda record: record, labels=list_added if is_declared else None)
    kinds = replace(KINDS, transforms={**KINDS.transforms, "add": kind})
    transforms = {"vo": {"kind": "add", "names": ["voms"]}}
    host = "plugins.apel: no collector makes the label submit_host"
    assert unmade(kinds=kinds, transforms=transforms) == ([host] if is_declared else [])
    off = {"vo": {**transforms["vo"], "enabled": False}}
    assert len(unmade(kinds=kinds, transforms=off)) == 2
    hidden = {"hide": {"kind": "pseudonyms", "key": "x" * 32}}
    assert len(unmade(transforms=hidden)) == 2  # it adds none


def test_labels_that_a_collector_may_make_are_not_missed() -> None:
    assert unmade({**VOMS, "key_type": "Json"}) == []  # the JSON has them
    assert unmade(drop={"kind": "files", "folder": "/var/spool/jobs"}) == []
    assert len(unmade(drop={"kind": "files", "folder": "/var/spool/jobs", "enabled": False})) == 2
    assert unmade(apel={**APEL, "source": {"url": "https://records.example.org"}}) == []


@pytest.mark.parametrize("kind", ["slurm", "slurm_epilog", "htcondor", "kubernetes"])
def test_a_kind_that_names_its_components_names_its_labels(kind: str) -> None:
    installed = KINDS.collectors[kind]
    assert installed.labels is not None
    names = installed.labels(
        installed.config.model_validate({"kind": kind} if "kind" in installed.config.model_fields else {})
    )
    assert names is not None
    assert "site_id" in names


def test_an_apel_plugin_without_a_beginning_is_remarked_on() -> None:
    def told(**site: Any) -> list[str]:  # Any: as in a file
        found = remarked(plugins={"apel": {**APEL, "site": {"sites_to_report": {"E": ["S"]}, **site}}})
        return [each for each in found if each.startswith("plugins.apel: ")]

    assert ["publish_since is missing, so the first run fails" in each for each in told()] == [True]
    assert told(publish_since="2026-01-01T00:00:00Z") == []
