"""AUDITOR's files of the priority plugin become configurations that load, and mean what they say."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from auditord.cli import auditord
from auditord.config.loading import load_text
from auditord.hooks import load_hooks
from auditord_builtin.priority.config import SCONTROL, PriorityConfig, import_config
from auditord_hookspecs.sources import RemoteSource

FULL = """\
auditor: {addr: auditor.example, port: 8443}
timeout: 60
duration: 1209600
frequency: 1800
components: {NumCPUs: HEPSPEC, Memory: MemScore}
min_priority: 1
max_priority: 65335
group_mapping:
  atlas: [part1, 7]
  ilc: []
commands: ["/usr/bin/scontrol update PartitionName={1} PriorityJobFactor={priority}", "echo {resources}"]
computation_mode: FullSpread
log_level: warn
logging: {log_to_file: true}
prometheus: {enable: true, addr: 0.0.0.0, port: 9000, metrics: [ResourceUsage]}
tls_config: {use_tls: true, ca_cert_path: /ca.pem, client_cert_path: /cert.pem, client_key_path: /key.pem}
"""
LEAST = """\
auditor: {addr: "127.0.0.1", port: 8000}
components: {NumCPUs: HEPSPEC}
group_mapping: {atlas: [part1]}
command: ["/bin/true"]
tls_config: {use_tls: false}
"""

Import = Callable[[str], tuple[str, PriorityConfig]]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    def run(text: str) -> tuple[str, PriorityConfig]:
        (tmp_path / "theirs.yml").write_text(text)
        result = CliRunner().invoke(auditord, ["config", "import", str(tmp_path / "theirs.yml")])
        assert result.exception is None, result.output
        config = load_text(result.output, "imported", load_hooks([]).kinds, {"HOME": "/h"}).plugins["priority"]
        assert isinstance(config, PriorityConfig)
        return result.output, config

    return run


def test_everything_is_carried_over(imported: Import) -> None:
    text, config = imported(FULL)
    assert config.interval == timedelta(minutes=30)
    assert (config.duration, config.window) == (timedelta(days=14), "start")
    assert (config.min_priority, config.max_priority, config.computation_mode) == (1, 65335, "FullSpread")
    assert config.group_mapping == {"atlas": ("part1", "7"), "ilc": ()}
    assert (config.components, config.component_combination) == (
        {"NumCPUs": "HEPSPEC", "Memory": "MemScore"},
        "product",
    )
    assert config.commands[0] == SCONTROL
    assert config.metrics == ("ResourceUsage",)
    assert config.group_keys == ("group_id",)
    assert isinstance(config.source, RemoteSource)
    assert (config.source.url, config.source.timeout) == ("https://auditor.example:8443", timedelta(minutes=1))
    assert str(config.source.tls.certificate) == "/cert.pem"
    for remark in (
        "prometheus.addr, prometheus.port: the gauges are at /metrics",
        "multiplies the components",
        "AUDITOR left it unchange",
    ):
        assert remark in text


def test_defaults_are_auditors(imported: Import) -> None:
    text, config = imported(LEAST)
    assert (config.source, config.metrics, config.commands) == ("local", (), (SCONTROL,))
    assert (config.min_priority, config.max_priority, config.computation_mode) == (0, 1024, "ScaledBySum")
    assert (config.interval, config.duration, config.component_combination) == (timedelta(hours=1), None, "sum")
    assert "command: AUDITOR's option is commands; it ignored this" in text
    assert "auditor: the plugin uses this daemon's own records" in text


@pytest.mark.parametrize("document", [{"schedd_names": ["a"]}, {"utilization": {}}, {"kind": "x", "group_mapping": {}}])
def test_other_files_are_not_taken(document: dict[str, Any]) -> None:
    assert import_config(document) is None


def test_an_order_that_is_refused_here_is_reported() -> None:
    made = import_config({"group_mapping": {"a": []}, "min_priority": 2000, "prometheus": {"enable": False}})
    assert made is not None
    assert "which auditord refuses" in made.comments["plugins.priority.min_priority"]
    assert made.sections["plugins.priority.metrics"] == []
