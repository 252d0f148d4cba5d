"""AUDITOR's configuration of its utilisation plugin in our words."""

from typing import Any

from auditord_builtin.utilisation.config import UtilisationConfig, import_config
from auditord_builtin.utilisation.usage import rename_group
from auditord_hookspecs import ImportedConfig

FILE: dict[str, Any] = {
    "logging": {"level": "TRACE", "file": "/var/log/utilisation.log"},
    "auditor": {
        "hosts": ["a.example.org", "b.example.org"],
        "port": [8000, 8001],
        "timeout": 60,
        "site_meta_field": "site",
        "use_tls": False,
        "component_fields_in_record": {"cores": "NumCores", "benchmark": "hepscore23", "total_cpu": "CPU"},
        "collector_type": "slurm",
    },
    "utilization": {
        "groupedby": "VOMS",
        "grouped_list": ["production", "a+b"],
        "watt_per_core": 5,
        "co2_per_kwh": 0.363,
        "interval": 10,
        "file_name": "report",
        "file_path": "/srv/reports",
        "colour": "red",
    },
    "cluster": {"watt_per_core": {"site": {"A": 4.6}}},
    "email": {"enable_email_report": True, "smtp_server": "mx.example.org", "smtp_port": 587},
}


def imported(**changes: Any) -> ImportedConfig:
    result = import_config({**FILE, **changes})
    assert result is not None
    return result


def as_config(result: ImportedConfig) -> UtilisationConfig:
    document: dict[str, Any] = {}
    for path, value in result.sections.items():
        *folders, option = path.split(".")
        if folders[0] == "plugins" and option != "kind":
            section = document
            for folder in folders[2:]:
                section = section.setdefault(folder, {})
            section[option] = value
    return UtilisationConfig.model_validate(document)


def test_every_option_has_its_counterpart_or_is_listed() -> None:
    result = imported()
    config = as_config(result)
    assert config.group_keys == ("VOMS",)
    assert [rule.matches.pattern for rule in config.group_names] == ["production", r"a\+b"]
    assert (config.components.cores, config.components.cpu_time, config.benchmark) == ("NumCores", "CPU", "hepscore23")
    assert config.components.cpu_time_unit.value == "ms"
    assert "write seconds: s" in result.comments["plugins.utilisation.components.cpu_time_unit"]
    assert float(config.energy.sites["A"].watt_per_core or 0) == 4.6
    assert config.csv is not None
    assert (str(config.csv.folder), config.csv.name) == ("/srv/reports", "report_{period}.csv")
    assert config.mail is None
    assert "host: mx.example.org, port: 587" in result.dropped["email"]
    assert set(result.dropped) == {"auditor", "logging.file", "utilization.interval", "email", "utilization.colour"}
    assert result.sections["logging.level"] == "debug"


def test_without_a_list_groups_are_named_by_vo_and_role() -> None:
    rules = as_config(imported(utilization={"groupedby": "VOMS"})).group_names
    named = {
        "/atlas/Role=production/Capability=NULL": "atlas-production",
        "/atlas/higgs/Role=production/Capability=NULL": "atlas-production",
        "/atlas/Role=NULL/Capability=NULL": "atlas",
        "/atlas": "atlas",
        "local": "local",
    }
    assert {voms: rename_group(voms, rules) for voms in named} == named
    assert rename_group(None, rules) is None


def test_other_files_are_left_to_others() -> None:
    assert import_config({"collectors": {}}) is None
