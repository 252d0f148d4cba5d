"""The references of the manual name all that a running daemon has."""

import re
from collections.abc import Callable

import msgspec
import pytest

from auditord.hooks.loading import find_specs
from auditord.manual import text_of
from auditord.testing.daemon import TestDaemon

StartDaemon = Callable[..., TestDaemon]


def test_every_metric_of_a_daemon_is_in_the_reference(auditord_daemon: StartDaemon) -> None:
    daemon = auditord_daemon({"plugins": {"open": {"kind": "open_records", "run_at_start": True}}})
    daemon.finish_run("open")
    daemon.get("/health_check")
    shown = daemon.get("/metrics").decode()
    families = {name for name in re.findall(r"^# TYPE (\w+) ", shown, re.MULTILINE) if not name.endswith("_created")}
    text = text_of("metrics").replace("`_per", "`num_records_database_per")
    assert len(families) > 20
    assert {name for name in families if f"`{name}`" not in text} == set()


def test_metrics_have_whole_names_and_types() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| \S", text_of("metrics"), re.MULTILINE)
    assert {
        ("auditord_send_faults_total", "counter"),
        ("auditord_queue_entries", "gauge"),
        ("auditord_run_duration_seconds", "histogram"),
        ("auditord_waldur_anomalies", "gauge"),
    } <= set(rows)
    assert {name for name, _ in rows if not name.startswith("auditord_")} == {"priority", "resource_usage"}


def test_every_call_of_the_described_api_is_in_the_reference_and_no_other(auditord_daemon: StartDaemon) -> None:
    document = msgspec.json.decode(auditord_daemon({}).get("/openapi.json"))
    wanted = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert set(re.findall(r"^### (.*)$", text_of("routes"), re.MULTILINE)) == wanted


@pytest.mark.parametrize("name", find_specs())
def test_every_hook_has_a_heading_and_no_markup_of_its_docstring(name: str) -> None:
    part = text_of("hooks").partition(f"## {name}\n")[2].partition("\n## ")[0]
    assert f"def {name}(" in part
    assert ":class:" not in part
    assert "::" not in part
