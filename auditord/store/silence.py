"""Find sites without new records for longer than usual; used by status, doctor and metrics."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from auditord.store.store import RecordStore
from auditord_hookspecs import AggregateQuery, CalendarPeriod, CalendarUnit, Group, MetaValue
from auditord_hookspecs.query import AllOf, Comparison, TimeCompares, TimeField

LOOK_BACK: Final = timedelta(days=90)
"""A site that has reported nothing for longer counts as closed, not as silent."""

TIMES: Final = 3
"""A silence of more than this many usual intervals is a gap."""

MOST: Final = 200
"""The maximum number of sites to return, those with the most records. More can only be due to a mistake."""

_DAY: Final = timedelta(days=1)


class SiteActivity(msgspec.Struct, frozen=True):
    """The records of a site in the last ninety days.

    Args:
        site: the site's name; empty for records without one.
        records: the number of records that ended.
        last: when the last one ended.
        usual: the mean time between days with records, at least a day; None after a single such day.
    """

    site: str
    records: int
    last: datetime
    usual: timedelta | None

    def is_gap(self, now: datetime) -> bool:
        """Return whether the site has been silent for several of its usual intervals."""
        return self.usual is not None and now - self.last > TIMES * self.usual


async def site_activity(store: RecordStore, now: datetime) -> Sequence[SiteActivity]:
    """Return the sites that have reported, sorted by name. The lake is not needed.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    ended = TimeCompares(TimeField.STOP, Comparison.GTE, now - LOOK_BACK)
    known = TimeCompares(TimeField.STOP, Comparison.LTE, now)
    query = AggregateQuery(AllOf((ended, known)), (MetaValue("site_id", "site"), CalendarPeriod(CalendarUnit.DAY)))
    days = defaultdict[str, list[Group]](list)
    for group in (await store.sums_here(query)).answer.groups:
        days[str(group.key[0] or "")].append(group)
    found: list[SiteActivity] = []
    for site, groups in days.items():
        first, last = min(day.first_stop for day in groups), max(day.last_stop for day in groups)
        usual = max((last - first) / (len(groups) - 1), _DAY) if len(groups) > 1 else None
        found.append(SiteActivity(site, sum(day.records for day in groups), last, usual))
    largest = sorted(found, key=lambda each: each.records, reverse=True)[:MOST]
    return sorted(largest, key=lambda each: each.site)
