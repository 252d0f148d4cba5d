from typing import Any

import pytest

from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig, import_config
from auditord_hookspecs import ImportedConfig

DOCUMENT: dict[str, Any] = {
    "addr": "auditor.example.org",
    "port": 8000,
    "record_prefix": "site",
    "site_id": "SITE-A",
    "components": [
        {
            "name": "Cores",
            "key": "NumCPUs",
            "scores": [
                {"name": "HEPSPEC06", "value": 1.1, "only_if": {"key": "Partition", "matches": "^part1$"}},
                {"name": "HEPSPEC06", "value": 1.2, "only_if": {"key": "UserId", "matches": "^alice"}},
            ],
        },
        {"name": "Memory", "key": "Mem", "only_if": {"key": "JobState", "matches": "COMPLETED"}},
    ],
    "log_level": "warn",
    "tls_config": {"use_tls": False},
}


def imported(**changes: Any) -> ImportedConfig:
    found = import_config({**DOCUMENT, **changes})
    assert found
    return found


def model(found: ImportedConfig) -> SlurmEpilogConfig:
    prefix = "collectors.slurm_epilog."
    options = {path.removeprefix(prefix): value for path, value in found.sections.items() if path.startswith(prefix)}
    assert options.pop("kind") == "slurm_epilog"
    return SlurmEpilogConfig.model_validate(options)


def test_it_is_understood_with_auditors_ids() -> None:
    found = imported()
    config = model(found)
    assert (config.record_prefix, config.record_id, config.sites[0].name) == ("site", "raw", "SITE-A")
    cores, memory = config.components
    assert (cores.key, memory.key, memory.sub_key) == ("NCPUS", "AllocTRES", "mem")
    assert [each.key for score in cores.scores for each in score.only_if] == ["Partition", "User"]
    assert [each.key for each in memory.only_if] == ["State"]
    assert found.sections["logging.level"] == "warning"
    assert set(found.dropped) == {"addr", "port", "tls_config"}
    assert "of all nodes" in found.comments["collectors.slurm_epilog.components"]
    assert "parentheses" in found.comments["collectors.slurm_epilog.components"]


@pytest.mark.parametrize(("key", "remarked"), [("UserId", True), ("GroupId", True), ("Partition", False)])
def test_only_names_of_users_and_groups_are_remarked_on(key: str, remarked: bool) -> None:  # noqa: FBT001 a column
    rule = {"name": "Cores", "key": "NumCPUs", "only_if": {"key": key, "matches": "x"}}
    comment = imported(components=[rule]).comments["collectors.slurm_epilog.components"]
    assert ("the name alone is compared" in comment) is remarked


def test_auditors_default_is_cores_alone() -> None:
    document = {name: value for name, value in DOCUMENT.items() if name != "components"}
    found = import_config(document)
    assert found
    assert [rule.name for rule in model(found).components] == ["Cores"]


def test_other_files_are_not_touched() -> None:
    assert import_config({**DOCUMENT, "sacct_frequency": 10}) is None
    assert import_config({"addr": "x", "port": 1}) is None
