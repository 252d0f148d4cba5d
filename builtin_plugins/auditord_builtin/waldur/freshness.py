"""The time that records cover: a store that lacks some days looks exactly like one of an idle cluster."""

from datetime import datetime

from auditord_builtin.waldur.config import WaldurConfig
from auditord_hookspecs import AggregateQuery, MetaValue, Records
from auditord_hookspecs.query import AllOf, Comparison, TimeCompares, TimeField


async def staleness(config: WaldurConfig, records: Records, now: datetime) -> str | None:
    """Why the records are not to be believed where they say that less, or nothing, was consumed; None if they are.

    A record that began or ended in the last while shows that its site is collected. Where no sites are configured, one
    record of any site is enough.
    """
    seen = {site for field in TimeField for site in await _sites(config, records, field, now)}
    missing = [site for site in config.sites if site not in seen]
    if not missing and seen:
        return None
    since = f"began or ended since {(now - config.stale_after).isoformat(timespec='seconds')}"
    return f"no record of {', '.join(missing)} {since}" if missing else f"no record {since}"


async def covered_since(config: WaldurConfig, records: Records) -> datetime | None:
    """The instant since which there are records, of each of the configured sites; None if one has none.

    It is the first end of a job, since jobs that ended before the collector began are not there.
    """
    groups = (await records.aggregate(AggregateQuery(by=(MetaValue(*config.site_meta),)))).groups
    firsts = {group.key[0]: group.first_stop for group in groups}
    if not config.sites:
        return min(firsts.values(), default=None)
    return max(firsts[site] for site in config.sites) if firsts.keys() >= set(config.sites) else None


async def _sites(config: WaldurConfig, records: Records, field: TimeField, now: datetime) -> set[object]:
    recent = (
        TimeCompares(field, Comparison.GTE, now - config.stale_after),
        TimeCompares(field, Comparison.LTE, now),  # a wrong clock's record of the future would hide it for ever
    )
    query = AggregateQuery(where=AllOf(recent), by=(MetaValue(*config.site_meta),), as_of=now)
    return {group.key[0] for group in (await records.aggregate(query)).groups}
