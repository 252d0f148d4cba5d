"""``auditord apel show`` without a month: the state as a table."""

from datetime import UTC, datetime

import msgspec

from auditord.testing import FakePluginContext
from auditord_builtin.apel.commands import overview
from auditord_builtin.apel.state import DayState, MonthState, Outbox, Packed, ReportedState, SiteState


def test_each_month_of_each_site_then_what_is_in_the_way() -> None:
    outbox = Outbox(digest="d", jobs=9, rows=Packed(), messages=(Packed(), Packed()))
    moment = datetime(2024, 4, 1, 2, 3, 4, tzinfo=UTC)
    march = MonthState(jobs=7, acknowledged=moment, stored=9, reportable=8, problems=("SITE-A 2024-03: odd",))
    months = {"2024-04": MonthState(stored=3, reportable=2, outbox=outbox), "2024-03": march}
    site_b = SiteState(days={"2024-03-05": DayState(stored=5, reportable=4, jobs=1)})
    reported = ReportedState(sites={"SITE-A": SiteState(months=months), "SITE-B": site_b})
    context = FakePluginContext(state=msgspec.to_builtins(reported))
    lines = list(overview(context, ["SITE-A", "SITE-B", "SITE-C"]))
    assert lines == [
        "site                     month       stored   reported acknowledged  waiting  last acknowledged",
        "SITE-A                   2024-03          9          8            7        0  2024-04-01 02:03:04Z",
        "SITE-A                   2024-04          3          2            0        2",
        "SITE-B                   2024-03          5          4            1        0",
        "! SITE-A 2024-03: odd",
    ]


def test_a_state_without_the_sites_asked_for() -> None:
    context = FakePluginContext(state=msgspec.to_builtins(ReportedState(sites={"SITE-A": SiteState()})))
    assert list(overview(context, ["SITE-B"])) == ["nothing has been reported yet"]
