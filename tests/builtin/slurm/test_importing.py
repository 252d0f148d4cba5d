from datetime import UTC, datetime
from typing import Any

import pytest

from auditord_builtin.slurm.config import SlurmConfig, import_config
from auditord_builtin.slurm.conversion import Converter
from auditord_hookspecs.outcomes import Converted
from tests.builtin.slurm.test_conversion import run

DOCUMENT: dict[str, Any] = {
    "addr": "auditor.example.org",
    "port": 8000,
    "record_prefix": "site",
    "sites": [{"name": "A", "only_if": {"key": "Partition", "matches": "^part1$"}}, {"name": "B"}],
    "job_filter": {
        "status": ["completed", "failed"],
        "partition": ["part1"],
        "account": ["Physics"],
        "user": [],
        "typo": 1,
    },
    "meta": [
        {"name": "voms", "key": "Comment", "key_type": "Json", "key_allow_empty": True},
        {"name": "Partition", "key": "Partition", "key_type": "String", "only_if": {"key": "User", "matches": "a"}},
    ],
    "components": [
        {"name": "Cores", "key": "NCPUS", "scores": [{"name": "HEPSPEC06", "value": 1.1}], "default_valu": 3},
        {"name": "Memory", "key": "ReqMem", "key_type": "IntegerMega", "default_value": 0},
        {"name": "MaxRSS", "key": "MaxRSS", "default_value": 0},
    ],
    "earliest_datetime": "2023-09-15T12:00:00+00:00",
    "sacct_frequency": 300,
    "sender_frequency": 60,
    "database_path": "sqlite:///var/lib/x.db",
    "log_level": "warn",
    "logging": {"log_to_file": True},
    "tls_config": {"use_tls": False},
}


def options_of(document: dict[str, Any]) -> dict[str, Any]:
    imported = import_config(document)
    assert imported is not None
    prefix = "collectors.slurm."
    return {
        path.removeprefix(prefix): value
        for path, value in imported.sections.items()
        if path.startswith(prefix) and path != "collectors.slurm.kind"
    }


def test_every_option_is_translated_remarked_or_named_as_dropped() -> None:
    imported = import_config(DOCUMENT)
    assert imported is not None
    config = SlurmConfig.model_validate(options_of(DOCUMENT))
    assert imported.sections["collectors.slurm.kind"] == "slurm"
    assert imported.sections["logging.level"] == "warning"
    assert config.record_prefix == "site"
    assert config.interval is not None
    assert config.interval.total_seconds() == 300
    assert config.job_filter.status == ("COMPLETED", "FAILED")
    assert config.earliest_datetime == datetime(2023, 9, 15, 12, tzinfo=UTC)
    assert [rule.name for rule in config.components] == ["Cores", "Memory", "MaxRSS"]
    assert {*imported.dropped} == {
        *("addr", "port", "tls_config", "sender_frequency", "database_path", "logging"),
        *("job_filter.typo", "components.default_valu"),
    }
    remarks = imported.comments["collectors.slurm.components"]
    assert "4G is 4096" in remarks
    assert "MaxRSS: of all steps" in remarks
    assert "only_if is applied" in imported.comments["collectors.slurm.meta"]


def test_an_imported_filter_passes_the_jobs_that_sacct_would_list() -> None:
    """sacct ignores the case of accounts and partitions; slurmdbd has accounts in lower case."""
    options = {**options_of(DOCUMENT), "meta": [], "sites": [{"name": "A"}], "components": "auditor"}
    converted = Converter(SlurmConfig.model_validate(options)).convert(run(Partition="part1", Account="physics"))
    assert isinstance(converted, Converted)


def test_defaults_that_differ_are_written_out() -> None:
    options = options_of({"sacct_frequency": 10, "tls_config": {"use_tls": False}})
    config = SlurmConfig.model_validate(options)
    assert config.job_filter.status == ("COMPLETED",)
    assert [rule.name for rule in config.components] == ["Cores"]
    imported = import_config({"sacct_frequency": 10})
    assert imported is not None
    assert "failed" in imported.comments["collectors.slurm.job_filter"]
    assert "earliest_datetime" in imported.comments["collectors.slurm"]


def test_a_date_that_yaml_has_read_is_kept() -> None:
    options = options_of({**DOCUMENT, "earliest_datetime": datetime(2023, 9, 15, tzinfo=UTC)})
    assert options["earliest_datetime"] == "2023-09-15T00:00:00+00:00"


@pytest.mark.parametrize(
    "document",
    [
        {"application": {"port": 8000}, "database": {}},
        {"schedd_names": ["a"], "record_prefix": "htcondor"},
        {"prometheus_addr": "x", "job_filter": {}, "tls_config": {}},
        {"site_id": "x", "components": [], "record_prefix": "slurm"},
        {"record_prefix": "x"},
    ],
)
def test_files_of_other_programs_are_left_alone(document: dict[str, Any]) -> None:
    assert import_config(document) is None
