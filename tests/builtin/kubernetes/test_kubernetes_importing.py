import json
from pathlib import Path
from typing import Any

import pytest

from auditord.config.importing import import_files
from auditord.config.kinds import InstalledKinds
from auditord.config.loading import load_text
from auditord_builtin.kubernetes.collecting import KUBERNETES
from auditord_builtin.kubernetes.config import AUDITOR_COMPONENTS, KubernetesConfig, import_config

AUDITORS: dict[str, Any] = {
    "auditor_addr": "auditor.example.org",
    "auditor_port": 8000,
    "auditor_timeout": 10,
    "prometheus_addr": "prometheus.example.org",
    "prometheus_port": 31000,
    "prometheus_timeout": 60,
    "record_prefix": "KUBE",
    "earliest_datetime": "2026-03-01T12:00:00+01:00",
    "collect_interval": 45,
    "merge_interval": 60,
    "database_path": "/var/lib/auditor-kubernetes-collector",
    "job_filter": {"namespace": ["grid"], "labels": ["app==test"], "status": ["completed"]},
    "backlog_interval": 300,
    "backlog_maxretries": 2,
    "log_level": "trace",
    "tls_config": {"use_tls": False},
}


def configuration(sections: dict[str, Any]) -> KubernetesConfig:
    nested: dict[str, Any] = {}
    for path, value in sections.items():
        *parents, name = path.split(".")[2:]
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    assert nested.pop("kind") == "kubernetes"
    return KubernetesConfig.model_validate(nested)


def test_auditors_file_becomes_a_configuration() -> None:
    result = import_config(AUDITORS)
    assert result is not None
    config = configuration({name: value for name, value in result.sections.items() if name.startswith("coll")})
    assert (config.record_prefix, config.scopes, config.selector) == ("KUBE", ("grid",), "app==test")
    assert config.prometheus is not None
    assert config.prometheus.url == "http://prometheus.example.org:31000"
    assert result.sections["logging.level"] == "debug"
    assert {
        "auditor_addr",
        "tls_config",
        "database_path",
        "job_filter.status",
        "backlog_interval",
        "backlog_maxretries",
    } <= set(result.dropped)


def test_nothing_counts_otherwise_than_with_auditor_without_a_remark() -> None:
    result = import_config(AUDITORS)
    assert result is not None
    config = configuration({name: value for name, value in result.sections.items() if name.startswith("coll")})
    assert config.components == AUDITOR_COMPONENTS
    assert [site.name for site in config.sites] == ["NOT_CONFIGURED"]
    remarks = {path.removeprefix("collectors.kubernetes."): text for path, text in result.comments.items()}
    assert "init containers" in remarks["components"]
    assert "NOT_CONFIGURED" in remarks["sites"]
    assert "group_id" in remarks["meta"]
    assert "deleted" in remarks["job_filter.status"]
    assert "cpu_query" in remarks["prometheus.url"]


def test_the_written_file_is_a_configuration_with_its_remarks(tmp_path: Path) -> None:
    (tmp_path / "auditor.yml").write_text(json.dumps(AUDITORS))
    kinds = InstalledKinds(collectors={"kubernetes": KUBERNETES}, plugins={}, senders={})
    text = import_files([tmp_path / "auditor.yml"], kinds)
    assert "components: auditor" in text
    assert "# AUDITOR's records had no site" in text
    config: Any = load_text(text, "auditord.yml", kinds, {"HOME": str(tmp_path)}).collectors["kubernetes"]
    assert config.components == AUDITOR_COMPONENTS


def test_what_it_leaves_out_has_auditors_defaults() -> None:
    result = import_config({"prometheus_addr": "p", "prometheus_port": 9090, "typo": 1, "job_filter": {"lables": []}})
    assert result is not None
    config = configuration(dict(result.sections))
    assert (config.record_prefix, config.scopes, config.earliest_datetime) == ("", ("default",), None)
    assert "typing error" in result.dropped["typo"]
    assert "job_filter.lables" in result.dropped
    assert "earliest_datetime" in result.comments["collectors.kubernetes"]


@pytest.mark.parametrize("document", [{}, {"schedd_names": []}, {"sacct_frequency": 1, "collect_interval": 2}])
def test_other_files_are_left_to_others(document: dict[str, Any]) -> None:
    assert import_config(document) is None


def test_the_kind_has_what_the_host_asks_for() -> None:
    assert KUBERNETES.prefix is not None
    assert KUBERNETES.prefix(KubernetesConfig(record_prefix="x")) == "x"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kube_context": "a"}, "set it to the file with this context"),
        ({"job_filter": {"namespace": ["a", "a"]}}, "each namespace once"),
        ({"job_filter": {"namespace": ["A_b"]}}, "pattern"),
        ({"prometheus": {"url": "ftp://x"}}, "not a server URL"),
        ({"prometheus": {"url": "https://u:p@x"}}, "give a token"),
    ],
)
def test_wrong_options_are_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KubernetesConfig.model_validate(options)
