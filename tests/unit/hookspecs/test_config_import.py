"""The translation of a foreign configuration file grows as every kind's import needs it."""

from datetime import UTC, date, datetime

import pytest

from auditord_hookspecs.config_import import OWN_LOG, UNKNOWN, ConfigImport, instant


def test_options_remarks_and_reasons_are_kept_by_their_paths() -> None:
    result = ConfigImport({"a": 1, "logging": {}, "tpyo": 2, "tls": {"x": 1}, "none": None}, "plugins.p")
    result.put("a", 1)
    result.put("b.c", 2, "it was d")
    result.remark("", "of the whole instance")
    result.drop(result.document, {"a", "tls", "none"}, {"logging": OWN_LOG})
    result.drop(result.section("tls"), (), place="tls.", other="unused")
    assert (result.section("none"), result.section("absent")) == ({}, {})
    found = result.result("another")
    assert found.sections == {"plugins.p.a": 1, "plugins.p.b.c": 2}
    assert found.comments == {"plugins.p.b.c": "it was d", "plugins.p": "of the whole instance"}
    assert found.dropped == {"logging": OWN_LOG, "tpyo": UNKNOWN, "tls.x": "unused"}
    assert found.origin == "another"


def test_a_second_instance_is_included() -> None:
    first, second = ConfigImport({}, "plugins.a"), ConfigImport({}, "plugins.b")
    first.put("x", 1)
    second.put("x", 2, "remark")
    second.drop({"y": 0}, ())
    first.include(second)
    result = first.result()
    assert (result.sections, result.origin) == ({"plugins.a.x": 1, "plugins.b.x": 2}, "AUDITOR")
    assert (result.comments, result.dropped) == ({"plugins.b.x": "remark"}, {"y": UNKNOWN})


@pytest.mark.parametrize(
    ("written", "ours"),
    [("WARN", "warning"), ("trace", "debug"), ("off", "error"), ("Critical", "error"), ("info",) * 2],
)
def test_levels_have_our_names(written: str, ours: str) -> None:
    result = ConfigImport({}, "plugins.a")
    result.put_level(written, "of one program")
    assert (result.sections, result.comments) == ({"logging.level": ours}, {"logging.level": "of one program"})


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (datetime(2023, 9, 15, 12, tzinfo=UTC), "2023-09-15T12:00:00+00:00"),
        (datetime(2023, 9, 15, 12), "2023-09-15T12:00:00Z"),  # noqa: DTZ001 as YAML gives it
        (date(2023, 9, 15), "2023-09-15T00:00:00Z"),
        ("2023-09-15 12:00:00 -01:00", "2023-09-15T12:00:00-01:00"),
        ("2023-09-15T12:00:00+0100", "2023-09-15T12:00:00+0100"),
        ("2023-09-15T12:00:00Z", "2023-09-15T12:00:00Z"),
    ],
)
def test_an_instant_without_zone_is_utc(written: date | str, read: str) -> None:
    assert instant(written) == read
