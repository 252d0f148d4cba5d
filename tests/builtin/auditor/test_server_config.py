"""AUDITOR's ``archival_config`` becomes the section ``lake``."""

from typing import Any

import pytest

from auditord_builtin.auditor.server_config import import_server_config

SECTION = {
    "archive_older_than_months": 6,
    "archive_path": "/var/lib/auditor/archive",
    "cron_schedule": "0 30 3 * * *",
    "compression_type": "Snappy",
}


def imported(**section: Any) -> Any:
    result = import_server_config({"application": {"port": 8000}, "archival_config": section}, [])
    assert result is not None
    return result


def test_months_and_schedule_are_taken_over_and_what_is_dropped_is_named() -> None:
    result = imported(**SECTION)
    assert {name: value for name, value in result.sections.items() if name.startswith("lake.")} == {
        "lake.enabled": True,
        "lake.name": "main",
        "lake.keep_months": 6,
        "lake.schedule": "30 3 * * *",
    }
    assert "auditord import auditor" in result.dropped["archival_config.archive_path"]
    assert "zstd" in result.dropped["archival_config.compression_type"]
    assert "archival_config.archive_file_prefix" not in result.dropped


@pytest.mark.parametrize("schedule", [None, "", "0 3 * *"])
def test_a_schedule_that_is_none_is_left_out(schedule: str | None) -> None:
    assert "lake.schedule" not in imported(**SECTION | {"cron_schedule": schedule}).sections


def test_without_the_section_there_is_no_lake() -> None:
    result = import_server_config({"application": {"port": 8000}}, [])
    assert result is not None
    assert not [name for name in result.sections if name.startswith("lake")]
