from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.kinds import SLURM


def test_the_defaults_are_those_of_auditor_where_they_mean_the_same() -> None:
    config = SlurmConfig()
    assert config.record_prefix == "slurm"
    assert [site.name for site in config.sites] == ["NOT_CONFIGURED"]
    assert (config.components[0].name, config.components[0].key) == ("Cores", "NCPUS")
    assert [rule.name for rule in config.components if not rule.optional] == ["Cores"]
    assert config.meta == ()


def test_states_are_named_long_or_short() -> None:
    config = SlurmConfig.model_validate({"job_filter": {"status": ["completed", "OOM", "to"]}})
    assert config.job_filter.status == ("COMPLETED", "OUT_OF_MEMORY", "TIMEOUT")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"job_filter": {"status": ["running"]}}, "is not a state in which a job is over"),
        ({"job_filter": {"stauts": []}}, "stauts"),
        ({"record_prefix": "a-{site}"}, "no other placeholder"),
        ({"clusters": ["a", "b"]}, "must hold {cluster}"),
        ({"clusters": "all"}, "must hold {cluster}"),
        ({"components": [{"name": "X", "key": "a,b"}]}, "cannot be a field of sacct"),
        ({"merge": {"MaxRSS": "average"}}, "'alloc', 'batch', 'energy', 'max' or 'sum'"),
        ({"earliest_datetime": "2024-01-01T00:00:00"}, "timezone"),
        ({"overlap": "-5m"}, "overlap"),
        ({"slice": "0s"}, "at least 1m"),
        ({"sites": []}, "sites"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SlurmConfig.model_validate(options)


def test_several_clusters_are_fine_with_the_cluster_in_the_prefix() -> None:
    config = SlurmConfig.model_validate({"clusters": "all", "record_prefix": "{cluster}"})
    assert config.prefix_of("c1") == "c1"


def test_the_kind_says_what_the_host_needs() -> None:
    assert SLURM.prefix is not None
    assert SLURM.prefix(SlurmConfig(record_prefix="x")) == "x"
    assert SLURM.interval == timedelta(minutes=5)
    assert "record_prefix" in SLURM.config.model_json_schema()["properties"]


def test_a_configuration_can_be_shown_and_read_back() -> None:
    config = SlurmConfig.model_validate(
        {"sites": [{"name": "A", "only_if": {"key": "Partition", "matches": "^x"}}], "components": "auditor"}
    )
    assert SlurmConfig.model_validate(config.model_dump(mode="json")) == config


def test_the_schema_knows_the_short_forms() -> None:
    properties = SlurmConfig.model_json_schema()["properties"]
    assert {"const": "auditor", "type": "string"} in properties["components"]["anyOf"]
    assert {"type": "string"} in properties["sacct"]["anyOf"]
