"""A configuration of the Waldur site agent becomes ours, and loads."""

from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from auditord.config.importing import import_files
from auditord.config.loading import load_text
from auditord.errors import ConfigurationError
from auditord.hooks import load_hooks
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.importing import import_agent

AGENT: Final = """
sentry_dsn: ""
timezone: Europe/Tallinn
log_level: CRITICAL
reporting_periods: 3
global_proxy: http://proxy:3128
offerings:
  - name: Example SLURM Offering
    waldur_api_url: https://portal.example.ai/api/
    waldur_api_token: 9e1132b9
    waldur_offering_uuid: d629d5e45567425da9cdbdc1af67b32c
    backend_type: slurm
    reporting_backend: slurm
    order_processing_backend: ""
    mqtt_enabled: false
    stomp_enabled: false
    backend_settings:
      default_account: root
      customer_prefix: c_
      project_prefix: p_
      allocation_prefix: a_
      cluster_name: hpc
      slurm_bin_path: /opt/slurm/bin
    backend_components:
      cpu: {measured_unit: k-Hours, unit_factor: 60000, accounting_type: usage, label: CPU, limit: 10}
      mem: {measured_unit: gb-Hours, unit_factor: 61440, accounting_type: usage, label: RAM}
      gres/gpu: {measured_unit: Hours, unit_factor: 60, accounting_type: limit, label: GPU}
  - name: example slurm offering
    waldur_api_url: https://portal.example.ai
    waldur_api_token: ""
    oidc_token_url: https://sso/token
    oidc_client_id: agent
    oidc_client_secret: hush
    waldur_offering_uuid: d629d5e45567425da9cdbdc1af67b32d
    verify_ssl: false
    backend_type: slurm
    reporting_backend: slurm
    backend_components:
      gpu: {measured_unit: Hours, accounting_type: usage, label: GPU}
      credits:
        {measured_unit: C, accounting_type: usage, label: C, target_components: {cpu: {factor: 60}, node: {factor: 1}}}
"""
KINDS: Final = load_hooks([]).kinds


def imported(tmp_path: Path, text: str = AGENT) -> str:
    (tmp_path / "agent.yaml").write_text(text)
    return import_files([tmp_path / "agent.yaml"], KINDS)


def test_every_offering_becomes_an_instance_that_loads(tmp_path: Path) -> None:
    configuration = load_text(imported(tmp_path), "imported", KINDS, {"HOME": "/h"})
    first, second = configuration.plugins.values()
    assert list(configuration.plugins) == ["waldur_example_slurm_offering", "waldur_example_slurm_offering_2"]
    assert isinstance(first, WaldurConfig)
    assert isinstance(second, WaldurConfig)
    assert first.waldur_api_url == second.waldur_api_url == "https://portal.example.ai/api/"
    assert (first.timezone, first.reporting_periods, first.proxy) == ("Europe/Tallinn", 3, "http://proxy:3128")
    assert (str(first.slurm.slurm_bin_path), first.slurm.cluster_name) == ("/opt/slurm/bin", "hpc")
    assert first.backend_components["gres/gpu"].unit_factor == Fraction(60)
    assert second.oidc_client_secret is not None
    assert not second.verify_ssl
    assert second.recorded["gpu"].component == ("GPU",)
    assert configuration.logging.level == "info", "that of the whole daemon is not the agent's"


def test_what_is_dropped_is_named_and_what_changes_is_remarked(tmp_path: Path) -> None:
    text = imported(tmp_path)
    head = text.split("\nplugins:")[0]
    for option in ("sentry_dsn", "mqtt_enabled", "stomp_enabled", "default_account", "backend_type"):
        assert option in head
    assert "backend_components.cpu.limit" in head
    assert "d629d5e4" not in head
    assert not any(option in head for option in ("reporting_backend", "customer_prefix", "allocation_prefix"))
    assert ("  # Example SLURM Offering. records must" in text, "  # example slurm offering.\n" in text) == (True, True)
    other = imported(tmp_path, AGENT.replace("reporting_backend: slurm", "reporting_backend: moab", 1))
    assert "moab reported other amounts; compare them" in other
    assert "reported zeros, since Slurm's name for GPUs is gres/gpu" in text.replace("\n", " ").replace(" #", "")
    assert "ignored other components' unit_factor" in " ".join(text.replace("#", "").split())


def test_what_is_said_is_about_the_agent_and_is_said_once(tmp_path: Path) -> None:
    text = " ".join(imported(tmp_path).replace("#", "").split())
    assert "AUDITOR" not in text
    assert text.count("records must have Slurm's account") == 1
    again = AGENT.replace('waldur_api_token: ""', "waldur_api_token: another")
    assert " ".join(imported(tmp_path, again).replace("#", "").split()).count("better as a reference") == 1


def test_a_file_that_the_agent_would_refuse_is_not_said_to_be_one_of_auditor(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="cannot be imported, the program that the plugin waldur replaces would"
    ):
        imported(tmp_path, "offerings: [{waldur_offering_uuid: x, backend_components: [cpu]}]")


def test_accounts_are_chosen_as_the_agents_guide_does(tmp_path: Path) -> None:
    text = imported(tmp_path)
    configuration = load_text(text, "imported", KINDS, {"HOME": "/h"})
    first, second = configuration.plugins.values()
    assert isinstance(first, WaldurConfig)
    assert isinstance(second, WaldurConfig)
    assert (first.account_prefixes, second.account_prefixes) == (("c_", "p_", "a_"), ())
    assert "its code reported every resource" in " ".join(text.replace("#", "").split())
    any_name = imported(tmp_path, AGENT.replace("allocation_prefix: a_", 'allocation_prefix: ""'))
    assert "account_prefixes" not in any_name
    assert "allocation_prefix: not all prefixes are set" in any_name


def test_components_are_left_out_one_by_one_where_the_agent_did_so() -> None:
    document: dict[str, Any] = yaml.safe_load(AGENT)
    document["offerings"][0]["omit_anomalous_usage_components"] = True
    result = import_agent(document, {})
    assert result is not None
    assert result.sections["plugins.waldur_example_slurm_offering.omit_anomalous_usage_components"] is True
    assert not any("omit_anomalous" in option for option in result.dropped)


def test_the_agents_environment_is_read() -> None:
    document: dict[str, Any] = yaml.safe_load(AGENT)
    environment = {"WALDUR_SITE_AGENT_REPORT_PERIOD_MINUTES": "5", "WALDUR_SITE_AGENT_LOG_LEVEL": "DEBUG"}
    result = import_agent(document, environment)
    assert result is not None
    assert result.sections["plugins.waldur_example_slurm_offering.interval"] == "5m"
    assert result.sections["plugins.waldur_example_slurm_offering.retry_for"] == "100s"
    assert result.sections["logging.level"] == "error", "the file's, which the agent obeyed"
    assert "logging.level" not in result.comments
    del document["log_level"]
    result = import_agent(document, environment)
    assert result is not None
    assert result.sections["logging.level"] == "debug"
    assert result.comments["logging.level"] == "WALDUR_SITE_AGENT_LOG_LEVEL"


def test_the_environment_of_import_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALDUR_SITE_AGENT_REPORT_PERIOD_MINUTES", "60")
    configuration = load_text(imported(tmp_path), "imported", KINDS, {"HOME": "/h"})
    intervals = [each.interval for each in configuration.plugins.values() if isinstance(each, WaldurConfig)]
    assert intervals == [timedelta(hours=1)] * 2
    monkeypatch.setenv("WALDUR_SITE_AGENT_REPORT_PERIOD_MINUTES", "7.5")
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        imported(tmp_path)


@pytest.mark.parametrize("document", [{}, {"offerings": []}, {"offerings": 1}, {"offerings": [{"name": "x"}]}])
def test_other_files_are_left_to_others(document: dict[str, Any]) -> None:
    assert import_agent(document, {}) is None


@pytest.mark.parametrize(
    ("offering", "words"),
    [
        ({}, r"offerings\[0\]\.backend_components: expected options below it, got nothing"),
        ({"backend_components": ["cpu"]}, r"offerings\[0\]\.backend_components: .* got \['cpu'\]"),
        ({"backend_components": {"cpu": None}}, r"offerings\[0\]\.backend_components\.cpu: .* got nothing"),
        ({"backend_components": {}, "backend_settings": "x"}, r"offerings\[0\]\.backend_settings: .* got 'x'"),
    ],
)
def test_what_the_agent_could_not_read_is_said_by_its_place(offering: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        import_agent({"offerings": [{"name": "x", "waldur_offering_uuid": "u", **offering}]}, {})


def test_an_offering_that_is_none_is_said() -> None:
    offerings: list[Any] = [{"waldur_offering_uuid": "u", "backend_components": {}}, "x"]
    with pytest.raises(ValueError, match=r"offerings\[1\]: expected options below it, got 'x'"):
        import_agent({"offerings": offerings}, {})
