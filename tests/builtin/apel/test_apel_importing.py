from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from auditord.config.importing import import_files
from auditord.config.kinds import InstalledKinds
from auditord.config.loading import load_text
from auditord.config.yaml_files import read_tagged_file
from auditord.errors import ConfigurationError
from auditord_builtin.apel.config import (
    ApelConfig,
    ComponentField,
    MessageType,
    MetaField,
    NormalisedField,
    NormalisedWallDurationField,
    RecordField,
    ScoreField,
)
from auditord_builtin.apel.importing import import_config
from auditord_builtin.apel.publishing import import_file
from auditord_hookspecs import ImportedConfig, PluginContext, PluginKind

NEWER = (Path(__file__).parent / "auditor_apel.yml").read_text()
"""A file of version 0.11."""

OLDER = """!Config
plugin:
  log_level: INFO
  time_json_path: time.json
  report_interval: 20
  message_type: individual_jobs
site:
  publish_since: 2023-01-01 13:37:42+00:00
  sites_to_report: {SITE-A: [a]}
  benchmark_type: hepspec
authentication:
  auth_url: https://msg.argo.grnet.gr:8443/v1/service-types/ams/hosts/msg.argo.grnet.gr:authx509
  ams_url: https://msg-devel.argo.grnet.gr:443/v1/projects/accounting/topics/gLite-APEL:publish?key=
  client_cert: cert.pem
  client_key: key.pem
  ca_path: /etc/grid-security/certificates
  verify_ca: true
auditor: {ip: 127.0.0.1, port: 3333, timeout: 60, site_meta_field: [site_id, site]}
summary_fields:
  mandatory:
    NormalisedWallDuration: !NormalisedWallDurationField
      score: !ScoreField {name: HEPSPEC, component_name: Cores}
    NormalisedCpuDuration: !NormalisedField
      score: !ScoreField {name: HEPSPEC, component_name: Cores}
    WallDuration: !RecordField {name: runtime}
    CpuDuration: !ComponentField {name: TotalCPU}
    SubmitHost: !MetaField {name: headnode}
    VO: !MetaField
      name: user_id
      function: {name: vo_mapping, parameters: {atlsg: atlas, ops: ops}}
    Flavour: !ConstantField {value: 1}
individual_job_fields:
  mandatory:
    CpuDuration: !ComponentField {name: TotalCPU, divide_by: 1000}
  optional:
    SubmitHost: !MetaField {name: headnode}
    LocalUserId: !MetaField {name: user_id}
    FQAN: !MetaField {name: voms}
    ServiceLevel: !ScoreField {name: HEPSPEC, component_name: Cores}
    ServiceLevelType: !ConstantField {value: HEPSPEC}
    InfrastructureType: !ConstantField {value: grid}
    InfrastructureDescription: !ConstantField {value: AUDITOR-ARC-SLURM}
    Queue: !RecordField {name: stop_time, modify: month}
"""


def imported(text: str, folder: Path) -> ImportedConfig:
    (folder / "apel.yml").write_text(text)
    result = import_config(read_tagged_file(folder / "apel.yml").values)
    assert result is not None
    return result


def config_of(result: ImportedConfig) -> ApelConfig:
    prefix = "plugins.apel."
    options: dict[str, Any] = {  # Any: YAML
        path.removeprefix(prefix): value for path, value in result.sections.items() if path.startswith(prefix)
    }
    assert options.pop("kind") == "apel"
    return ApelConfig.model_validate(options)


def test_the_newer_layout(tmp_path: Path) -> None:
    result = imported(NEWER, tmp_path)
    config = config_of(result)
    assert config.site.sites_to_report == {"SITE.A": ("site_id_1", "site_id_2"), "SITE-B": ("site_id_3",)}
    assert [(each.type, each.score, each.component) for each in config.scores] == [
        ("HEPscore23", "hepscore23", "Cores")
    ]
    assert config.summary_fields is not None
    assert config.summary_fields.mandatory.CpuDuration == ComponentField(name="TotalCPU")
    assert config.summary_fields.optional.NodeCount == ComponentField(name="NNodes")
    assert config.interval == timedelta(days=1)
    assert (config.site.ce, config.site.zero_length_jobs) == ("ARC", False)
    assert {path.removeprefix("plugins.apel.summary_fields.mandatory.") for path in result.comments} == {
        "CpuDuration",
        "NormalisedCpuDuration.base_value",
        "plugins.apel.site",
        "plugins.apel.site.ce",
        "plugins.apel.site.zero_length_jobs",
        "plugins.apel.summary_fields.optional.VORole",
    }
    assert set(result.dropped) == {
        *("plugin.log_file", "plugin.time_json_path"),
        *("auditor.ip", "auditor.port", "auditor.timeout", "auditor.use_tls"),
        *("messaging.timeout", "messaging.retry"),
    }


@pytest.mark.parametrize(
    ("said", "kind"), [("summaries", MessageType.SUMMARIES), ("individual_jobs", MessageType.INDIVIDUAL_JOBS)]
)
def test_the_kind_of_message_is_taken_over(tmp_path: Path, said: str, kind: MessageType) -> None:
    text = OLDER.replace("message_type: individual_jobs", f"message_type: {said}")
    assert f"message_type: {said}" in text
    assert config_of(imported(text, tmp_path)).message_type is kind


def test_the_older_layout(tmp_path: Path) -> None:
    result = imported(OLDER, tmp_path)
    config = config_of(result)
    assert config.message_type is MessageType.INDIVIDUAL_JOBS
    assert str(config.site.publish_since) == "2023-01-01 13:37:42+00:00"
    assert config.messaging.ams_url is not None
    assert config.messaging.ams_url.endswith(":publish")
    assert config.summary_fields is not None
    assert isinstance(config.summary_fields.mandatory.NormalisedWallDuration, NormalisedWallDurationField)
    cpu = NormalisedField(
        score=ScoreField(name="HEPSPEC", component_name="Cores"), base_value=RecordField(name="runtime")
    )
    assert config.summary_fields.mandatory.NormalisedCpuDuration == cpu  # what AUDITOR did; ours takes CpuDuration
    assert "uses the runtime" in result.comments["plugins.apel.summary_fields.mandatory.NormalisedCpuDuration"]
    assert isinstance(config.summary_fields.mandatory.VO, MetaField)
    assert config.summary_fields.mandatory.VO.text("atlsgm01") == "atlas"
    assert config.individual_job_fields is not None
    assert config.individual_job_fields.mandatory.CpuDuration == ComponentField(name="TotalCPU")
    assert config.individual_job_fields.optional.InfrastructureType is not None
    assert "summary_fields.WallDuration" in result.dropped
    assert "summary_fields.Flavour" in result.dropped


@pytest.mark.parametrize(
    "text", ["sacct_frequency: 1", "commands: []\ngroup_mapping: {}", "site: {}\nauditor: {}", "database: {}"]
)
def test_files_of_others_are_none_of_ours(text: str, tmp_path: Path) -> None:
    (tmp_path / "other.yml").write_text(text)
    assert import_config(read_tagged_file(tmp_path / "other.yml").values) is None


def test_a_field_without_tag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="CpuDuration has no tag"):
        imported(OLDER.replace("CpuDuration: !ComponentField {", "CpuDuration: {"), tmp_path)


@pytest.mark.parametrize("text", ["a: !Tag 5", "a: !Tag [5]", "a: !!python/object:os.x {}"])
def test_only_mappings_have_tags(text: str, tmp_path: Path) -> None:
    (tmp_path / "other.yml").write_text(text)
    with pytest.raises(ConfigurationError, match="tag"):
        read_tagged_file(tmp_path / "other.yml")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2023-01-01 13:37:42+00:00", "2023-01-01 13:37:42+00:00"),
        ("2023-01-01", "2023-01-01 00:00:00+00:00"),
        ("2023-01-01T00:00:00Z", "2023-01-01 00:00:00+00:00"),
        ("2023-01-01 01:00:00 +01:00", "2023-01-01 01:00:00+01:00"),
    ],
)
def test_instants_as_yaml_writes_them(written: str, read: str, tmp_path: Path) -> None:
    config = config_of(imported(OLDER.replace("2023-01-01 13:37:42+00:00", written), tmp_path))
    assert str(config.site.publish_since) == read


@pytest.mark.parametrize("text", [NEWER, OLDER])
def test_what_the_command_prints_is_a_configuration(text: str, tmp_path: Path) -> None:
    async def nothing(config: ApelConfig, context: PluginContext) -> None:
        pass

    kind = PluginKind(name="apel", config=ApelConfig, run=nothing, import_config=import_file)
    kinds = InstalledKinds(collectors={}, plugins={"apel": kind}, senders={})
    (tmp_path / "apel.yml").write_text(text)
    printed = import_files([tmp_path / "apel.yml"], kinds)
    assert "# divide_by: 1000 is left out" in printed
    loaded = load_text(printed, "auditord.yml", kinds, {"HOME": str(tmp_path)})
    config: Any = loaded.plugins["apel"]  # Any: the loader makes a model of its own of each kind's
    assert isinstance(config, ApelConfig)
    assert config.site.sites_to_report
