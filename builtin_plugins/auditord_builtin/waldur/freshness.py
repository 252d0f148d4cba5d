"""Whether the records are up to date: a store that lacks the last days looks exactly like one of an idle cluster."""

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


async def _sites(config: WaldurConfig, records: Records, field: TimeField, now: datetime) -> set[object]:
    recent = (
        TimeCompares(field, Comparison.GTE, now - config.stale_after),
        TimeCompares(field, Comparison.LTE, now),  # a wrong clock's record of the future would hide it for ever
    )
    query = AggregateQuery(where=AllOf(recent), by=(MetaValue(*config.site_meta),), as_of=now)
    return {group.key[0] for group in (await records.aggregate(query)).groups}
