"""Sites on the page of the daemon's state."""

from datetime import UTC, datetime, timedelta

from auditord.web.page.operations import site_rows
from auditord_hookspecs.aggregates import Group

NOW = datetime(2026, 11, 22, 15, tzinfo=UTC)


def group(site: str, hours: int) -> Group:
    return Group((site,), 7, 0, NOW - timedelta(days=9), NOW - timedelta(hours=hours), ())


def test_sites_that_are_silent_are_named_also_after_a_month() -> None:
    long_ago = NOW - timedelta(days=60)
    rows = site_rows([group("a", 1), group("b", 30), group("c", 5)], {"c": NOW, "gone": long_ago})
    assert [row["site"] for row in rows if row["is_silent"]] == ["c", "gone"]
    assert (rows[-1]["records"], rows[-1]["last"]) == (0, long_ago)
