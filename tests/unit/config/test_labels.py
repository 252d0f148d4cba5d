"""One section says which labels are the user, the group and the site, for the host and for every plugin."""

from typing import Any

import pytest

from auditord.config.kinds import remarks
from auditord.config.loading import load_text
from auditord.config.model import Configuration
from auditord.errors import ConfigurationError
from auditord.hooks import load_hooks
from auditord.reporting import LabelKeys
from auditord.tasks.gauges import record_gauges

PLUGINS = """\
state_dir: /srv/a
plugins:
  utilisation: {kind: utilisation, csv: {folder: /srv}%(option)s}
  priority: {kind: priority, group_mapping: {a: [b]}}
  waldur: {kind: waldur, waldur_api_url: "https://w/api/", waldur_offering_uuid: 3f2b6a4e-0c1d-4e5f-8a9b-0c1d2e3f4a5b,
    waldur_api_token: t, backend_components: {cpu: {measured_unit: k-Hours, unit_factor: 60000}}}
  apel: {kind: apel, site: {sites_to_report: {A: [a]}}, messaging: {client_cert: /c, client_key: /k},
    summary_fields: {mandatory: {VO: {type: MetaField, name: voms}, SubmitHost: {type: MetaField, name: h}}}}
  retention: {kind: retention, months: 3}
transforms:
  pseudonyms: {kind: pseudonyms, key: 0123456789abcdef}
"""
LABELS = "labels: {user: uid, group: account, site: cluster}\n"


@pytest.fixture(scope="module")
def kinds() -> Any:
    return load_hooks([]).kinds


def load(kinds: Any, text: str, option: str = "") -> Configuration:
    return load_text(text + PLUGINS % {"option": option}, "a.yml", kinds, {})


def options(configuration: Configuration) -> dict[str, tuple[str, ...]]:
    plugins: Any = configuration.plugins
    pseudonyms: Any = configuration.transforms["pseudonyms"]
    return {
        "utilisation groups": plugins["utilisation"].group_keys,
        "utilisation sites": plugins["utilisation"].site_keys,
        "utilisation users": plugins["utilisation"].user_keys,
        "priority groups": plugins["priority"].group_keys,
        "waldur users": plugins["waldur"].user_meta,
        "waldur sites": plugins["waldur"].site_meta,
        "apel sites": plugins["apel"].site.site_meta_field,
        "retention": plugins["retention"].meta,
        "pseudonyms": pseudonyms.meta,
    }


def test_plugins_take_the_labels_of_the_section(kinds: Any) -> None:
    group, site, user, personal = ("account",), ("cluster",), ("uid",), ("uid", "user_id", "user")
    assert list(options(load(kinds, LABELS)).values()) == [
        *(group, site, user, group, user, site, site),
        *(personal, personal),
    ]


def test_without_the_section_they_also_take_the_older_names(kinds: Any) -> None:
    group, site, user = ("group_id", "group"), ("site_id", "site"), ("user_id", "user")
    assert list(options(load(kinds, "")).values()) == [group, site, user, group, user, site, site, user, user]


def test_an_option_of_a_plugin_wins(kinds: Any) -> None:
    found = options(load(kinds, LABELS, ", group_keys: VO"))
    assert (found["utilisation groups"], found["priority groups"]) == (("VO",), ("account",))


def test_the_host_counts_and_rolls_up_the_labels_of_the_section(kinds: Any) -> None:
    configuration = load(kinds, LABELS)
    assert configuration.labels.keys() == LabelKeys("cluster", "account", "uid")
    assert configuration.counted_keys == ["account", "cluster"]
    assert {key.key for key in record_gauges(configuration).keys} == {"account", "cluster"}
    assert configuration.rolled_keys == ("uid",)
    assert configuration.rolled_by_user == ("outcome", "account", "cluster")


@pytest.mark.parametrize(
    "section", ["labels: {group: ''}", "labels: {group: 5}", "labels: [account]", "labels: {vo: x}"]
)
def test_a_section_that_makes_no_sense_is_named(kinds: Any, section: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be used: a\.yml:1: labels"):  # and nothing else
        load(kinds, f"{section}\n")


SLURM = """\
state_dir: /srv/a
collectors:
  slurm: {kind: slurm, meta: [{name: partition, key: Partition, key_type: String}]}
"""


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("{group: account}", "labels.group: no collector makes the label account: add it to the meta of a collector"),
        ("{group: partition}", None),
        ("{group: outcome}", None),
        ("{}", None),
    ],
)
def test_a_label_that_no_collector_makes_is_named(kinds: Any, labels: str, said: str | None) -> None:
    found = remarks(load_text(f"labels: {labels}\n{SLURM}", "a.yml", kinds, {}), kinds)
    assert [each for each in found if "makes the label" in each] == ([] if said is None else [said])
