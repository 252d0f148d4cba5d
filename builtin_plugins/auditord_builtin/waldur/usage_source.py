"""The source of the amounts: the record store, or Slurm's own accounting."""

from collections.abc import Mapping
from datetime import datetime
from enum import Enum

from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.months import BillingMonth
from auditord_builtin.waldur.sacct_usage import sacct_month_usage
from auditord_builtin.waldur.usage import AccountUsage, month_usage
from auditord_hookspecs import AggregateQuery, MetaValue, PluginContext, Records
from auditord_hookspecs.query import AllOf, Comparison, TimeCompares, TimeField


class Source(Enum):
    """A source of usage, by its name on the command line."""

    STORE = "store"
    SACCT = "sacct"


class UsageSource:
    """The amounts of an instance's accounts.

    Attributes:
        now: the present instant, one for all that is asked.
        as_of: the instant up to which running jobs count. sacct knows the ends of all jobs, records only a while later.
    """

    def __init__(self, config: WaldurConfig, context: PluginContext, source: Source) -> None:
        self._config, self._context, self._source = config, context, source
        self.now: datetime = context.now()
        self.as_of = self.now - config.lag if source is Source.STORE else self.now

    async def month(self, month: BillingMonth) -> Mapping[str, AccountUsage]:
        """The usage of every account that has any, by the case-folded account.

        Raises:
            AuditordError: it cannot be had.
        """
        if self._source is Source.SACCT:
            return await sacct_month_usage(self._config, self._context, month, as_of=self.as_of)
        return await month_usage(self._config, self._context.records, month, as_of=self.as_of)

    async def covers(self, month: BillingMonth) -> bool:
        """True if the amounts of a month are believed where they say that an account or a user consumed nothing.

        Records from before the month are a sign that it was collected; of what sacct has forgotten there is none.
        """
        if self._source is Source.SACCT:
            return True
        since = await covered_since(self._config, self._context.records)
        return since is not None and since <= month.window.start

    async def staleness(self) -> str | None:
        """Why the amounts are not to be believed where they say less; None if they are."""
        if self._source is Source.SACCT:
            return None
        return await staleness(self._config, self._context.records, self.now)


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
