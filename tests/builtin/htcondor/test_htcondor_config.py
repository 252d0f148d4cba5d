from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from auditord_builtin.htcondor.ads import parse_ad
from auditord_builtin.htcondor.collecting import HTCONDOR
from auditord_builtin.htcondor.config import AUDITOR_COMPONENTS, HTCondorConfig, import_config
from auditord_builtin.htcondor.query import is_harmless, list_columns
from auditord_hookspecs.mapping import build_components, build_meta, find_site

DOCUMENT: dict[str, Any] = {
    "addr": "auditor.example.org",
    "port": 8000,
    "timeout": 10,
    "state_db": "/var/lib/x.db",
    "record_prefix": "site",
    "interval": 600,
    "pool": "cm.example.org",
    "schedd_names": ["s1", "s2"],
    "job_status": [3, 4],
    "constraint": "RoutedJob =!= true",
    "query_type": "exec",
    "earliest_datetime": "2026-01-01T00:00:00",
    "log_level": "CRITICAL",
    "log_file": "/var/log/x",
    "one_shot": True,
    "tls_config": {"use_tls": False},
    "typo": 1,
    "meta": {
        "user": {"key": "Owner"},
        "group": {"key": "VoName", "matches": r"^(\w+)"},
        "submithost": {"key": "GlobalJobId", "matches": r"^(.*)#\d+\.\d+#\d+$"},
        "kind": [
            {"name": "big", "key": "CpusProvisioned", "matches": "^[89]$", "only_if": {"key": "Owner", "matches": "a"}},
            {"name": "any"},
        ],
        "site": [
            {"name": "A", "key": "LastRemoteHost", "matches": r"a\.example\.org$"},
            {"key": "LastRemoteHost", "matches": r"\.(\w+)\.org$", "only_if": {"key": "Owner", "matches": "^bob$"}},
            {"name": "UNDEF"},
        ],
    },
    "components": [
        {
            "name": "Cores",
            "key": "CpusProvisioned",
            "scores": [
                {"name": "HEPSPEC", "key": "MachineAttrApelSpecs0", "matches": r"HEPSPEC\D+(\d+(\.\d+)?)"},
                {"name": "const", "factor": 1.5, "only_if": {"key": "ExitCode", "matches": "^0$"}, "oops": 1},
            ],
        },
        {"name": "TotalCPU", "key": "RemoteUserCpu+RemoteSysCpu"},
        {"name": "Jobs", "factor": 1},
    ],
}
CPU = {"name": "TotalCPU", "key": "RemoteUserCpu+RemoteSysCpu", "key_type": "Time"}
ALL_CPU = {**CPU, "key": "CumulativeRemoteUserCpu+CumulativeRemoteSysCpu"}
MATCHED = {
    "name": "Cores",
    "key": "CpusProvisioned",
    "scores": [{"name": "HEPSPEC", "key": "MachineAttrApelSpecs0", "matches": r"HEPSPEC\D+(\d+)"}],
}
ROW = {
    "Owner": "alice",
    "VoName": "atlas/x",
    "GlobalJobId": "s1#1.0#5",
    "CpusProvisioned": "8",
    "ExitCode": "0",
    "LastRemoteHost": "slot1@wn1.a.example.org",
    "RemoteUserCpu+RemoteSysCpu": "103.9",
    "MachineAttrApelSpecs0.HEPSPEC": "12.3",
}


def imported(document: dict[str, Any]) -> HTCondorConfig:
    found = import_config(document)
    assert found is not None
    prefix = "collectors.htcondor."
    options = {path.removeprefix(prefix): value for path, value in found.sections.items() if path.startswith(prefix)}
    assert options.pop("kind") == "htcondor"
    return HTCondorConfig.model_validate(options)


def test_every_option_is_translated_remarked_or_named_as_dropped() -> None:
    config, found = imported(DOCUMENT), import_config(DOCUMENT)
    assert found is not None
    assert (config.record_prefix, config.schedd_names, config.pool) == ("site", ("s1", "s2"), "cm.example.org")
    assert (config.job_status, config.constraint) == ((3, 4), "RoutedJob =!= true")
    assert config.interval is not None
    assert config.interval.total_seconds() == 600
    assert config.earliest_datetime == datetime(2026, 1, 1, tzinfo=UTC)
    assert "was local time" in found.comments["collectors.htcondor.earliest_datetime"]
    assert found.sections["logging.level"] == "error"
    assert set(found.dropped) == {
        *("addr", "port", "timeout", "tls_config", "state_db", "query_type", "log_file", "one_shot"),
        *("typo", "components.scores.oops"),
    }


def test_rules_yield_what_auditors_collector_yields() -> None:
    config = imported(DOCUMENT)
    assert find_site(config.sites, ROW) == "A"
    assert find_site(config.sites, {**ROW, "Owner": "bob", "LastRemoteHost": "wn.b.org"}) == "b"
    assert find_site(config.sites, {}) == "UNDEF"
    assert build_meta(config.meta, ROW).meta == {
        "user": ("alice",),
        "group": ("atlas",),
        "submithost": ("s1",),
        "kind": ("big", "any"),
    }
    assert build_meta(config.meta, {"Owner": "bob"}).meta == {"user": ("bob",), "kind": ("any",)}
    cores, total, jobs = build_components(config.components, ROW)
    assert [(score.name, score.value) for score in cores.scores] == [("HEPSPEC", 12.3), ("const", 1.5)]
    assert (cores.amount, total.amount, jobs.amount) == (8, 103, 1)


def test_imported_figures_are_auditors_but_for_benchmarks_which_are_read_as_an_ad() -> None:
    config, found = imported(DOCUMENT), import_config(DOCUMENT)
    assert found is not None
    assert config.runtime == "auditor"
    assert "until its removal" in found.comments["collectors.htcondor.runtime"]
    score = config.components[0].scores[0]
    assert (score.name, score.key, score.matches) == ("HEPSPEC", "MachineAttrApelSpecs0.HEPSPEC", None)


def test_labels_of_the_collectors_own() -> None:
    own = {"user_id": {"key": "User"}, "group_id": [{"key": "A"}, {"name": "none"}], "site_id": [{"name": "X"}]}
    found = import_config({**DOCUMENT, "meta": own})
    assert found is not None
    config = imported({**DOCUMENT, "meta": own})
    assert (config.user_keys, config.group_keys, config.sites[0].name) == (("User",), ("A",), "X")
    assert "meta.group_id" in found.dropped


@pytest.mark.parametrize(
    "document", [{"application": {}}, {"sacct_frequency": 1, "job_filter": {}}, {"record_prefix": "x"}]
)
def test_files_of_other_programs_are_left_alone(document: dict[str, Any]) -> None:
    assert import_config(document) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedd_names": ["a", "a"]}, "each schedd once"),
        ({"schedd_names": ["-name"]}, "each schedd once"),
        ({"constraint": "-1 == X"}, "cannot be an attribute or expression"),
        ({"user_keys": ["-file"]}, "cannot be an attribute or expression"),
        ({"schedd_names": ["a"], "history_paths": ["/x"]}, "or per_job_history_dir"),
        ({"per_job_history_dir": "/y", "history_paths": ["/x"]}, "or per_job_history_dir"),
        ({"epochs": True, "history_paths": ["/x"]}, "or per_job_history_dir"),
        ({"overlap": "-P1D"}, "must not be negative"),
        ({"jitter": "-P1D"}, "must not be negative"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        HTCondorConfig.model_validate(options)


@pytest.mark.parametrize(
    ("options", "remarked"),
    [
        ({}, []),
        ({"runtime": "all_runs"}, []),
        ({"components": "auditor", "runtime": "all_runs"}, []),
        ({"components": [CPU]}, []),
        ({"components": [CPU], "runtime": "all_runs"}, ["component TotalCPU", "use CumulativeRemoteUserCpu+"]),
        ({"components": [ALL_CPU]}, ["component TotalCPU", "use RemoteUserCpu+RemoteSysCpu"]),
        ({"components": [ALL_CPU], "runtime": "all_runs"}, []),
        ({"components": [{"name": "Load", "key": "CpusUsage"}]}, ["component Load: CpusUsage can have a fraction"]),
        ({"components": [MATCHED]}, ["score HEPSPEC", "use key: MachineAttrApelSpecs0.HEPSPEC without matches"]),
    ],
)
def test_figures_that_do_not_fit_are_remarked_on(options: dict[str, Any], remarked: Sequence[str]) -> None:
    remarks = HTCONDOR.remarks
    assert remarks is not None
    found = list(remarks(HTCondorConfig.model_validate({"sites": [{"name": "a"}], **options})))
    assert len(found) == bool(remarked)
    assert all(text in found[0] for text in remarked)


def test_a_request_that_does_not_matter_makes_no_ad_suspicious() -> None:
    """Submit tools write this expression. Among thousands of suspicious ads, a harmful one would not be found."""
    columns = list_columns(HTCondorConfig())
    request = "RequestMemory = ifthenelse(MemoryUsage isnt undefined,MemoryUsage,128)\nMemoryUsage = f(1)\n"
    known = "JobUniverse = 5\nCpusProvisioned = 1\nMemoryProvisioned = 128\nGPUsProvisioned = 0\n"
    for text, harmless in ((known, True), (known.replace("5", "11"), False), ("JobUniverse = 5\n", False)):
        assert is_harmless(parse_ad(text + request), columns) is harmless


def test_a_preset_stands_for_auditors_components() -> None:
    assert HTCondorConfig.model_validate({"components": "auditor"}).components == AUDITOR_COMPONENTS
