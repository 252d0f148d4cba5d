"""The usage of accounts and users in a billing month, from the record store or from Slurm's own accounting."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

import msgspec

from auditord_builtin.waldur.config import WaldurConfig, round_amount
from auditord_hookspecs import (
    AggregateQuery,
    CommandFailed,
    ComponentUsage,
    Context,
    InvalidRecord,
    MetaValue,
    PluginContext,
    Records,
    Window,
)
from auditord_hookspecs.mapping import quantities
from auditord_hookspecs.months import Month
from auditord_hookspecs.query import AllOf, Comparison, MetaContainsAny, TimeCompares, TimeField
from auditord_hookspecs.wording import counted

MADE_UP_FOR: Final = timedelta(days=1)
"""Report a month for this long after its end, even if ``reporting_periods`` is 1."""

CLOCKS_APART: Final = timedelta(minutes=5)
"""The maximum delay of the server's clock behind ours that is tolerated."""


class BillingMonth(Month, frozen=True):
    """A month that begins and ends at midnight in a time zone."""

    zone: ZoneInfo

    @property
    def start(self) -> datetime:
        """The first instant of the month, in UTC."""
        # If a clock change skips midnight, the month begins at the change. If midnight occurs twice, the first counts.
        return datetime(self.year, self.month, 1, tzinfo=self.zone).astimezone(UTC)


def month_at(moment: datetime, zone: ZoneInfo) -> BillingMonth:
    """Return the month of an aware instant."""
    local = moment.astimezone(zone)
    found = BillingMonth(local.year, local.month, zone)
    # If clocks are set back across midnight of the first day, the last hour of a month occurs twice.
    return found.next if moment >= found.next.start else found


def months_to_report(now: datetime, zone: ZoneInfo, periods: int) -> list[BillingMonth]:
    """Return the last ``periods`` months including the current one, the oldest first.

    The order matters, since older Waldurs show the month that was written last as the current usage. The previous month
    is always included for one day after its end, since its last minutes were not known before.
    """
    months = [month_at(now, zone)]
    ended = month_at(now - MADE_UP_FOR, zone)
    while len(months) < periods or ended.first_day < months[0].first_day:
        months.insert(0, months[0].previous)
    return months


def moment_of(month: BillingMonth, now: datetime) -> datetime | None:
    """Return the instant to send with a month's amounts, or None while the server would assign it to another month.

    The server determines the month in its own time zone, and refuses instants in its future. For a past month, noon of
    its first day lies in that month in all zones. For the current month only the present is possible. In some hours of
    the first or last day, the present lies in another month in UTC. A later run then reports the month.
    """
    if now >= month.window.stop:
        return datetime(month.year, month.month, 1, 12, tzinfo=UTC)
    present = (now - CLOCKS_APART).astimezone(UTC)
    return present if (present.year, present.month) == (month.year, month.month) else None


TICKS_PER_MINUTE: Final = 60_000_000

Minutes: TypeAlias = Mapping[str, Fraction]
"""Exact resource-minutes (of memory: MiB-minutes) by resource."""

RawUsage: TypeAlias = Mapping[str | None, Mapping[str | None, Minutes]]
"""Usage by account and user. Names are case-folded; None stands for records without a name."""


class AccountUsage(msgspec.Struct, frozen=True):
    """The usage of an account in a period, in Waldur's units, by component of the offering.

    Args:
        total: the sum of all users, named or not. It is rounded once, so it can differ from the sum of ``users``.
        users: the usage of each named user, by case-folded name.
    """

    total: Mapping[str, Decimal]
    users: Mapping[str, Mapping[str, Decimal]]


async def month_usage(
    config: WaldurConfig, records: Records, month: BillingMonth, *, as_of: datetime
) -> Mapping[str, AccountUsage]:
    """Return the usage of all accounts with usage, by case-folded name. Running jobs count up to ``as_of``."""
    return convert_usage(config, await raw_usage(config, records, month.window, as_of=as_of))


async def raw_usage(config: WaldurConfig, records: Records, window: Window, *, as_of: datetime) -> RawUsage:
    """Return the exact usage within a period, from the records of the configured sites."""
    if as_of <= window.start:
        return {}
    names = list(dict.fromkeys(name for each in config.resources for name in config.recorded[each].component))
    one_key = bool(config.sites) and len(config.site_meta) == 1  # a condition cannot express the other cases
    query = AggregateQuery(
        where=AllOf((MetaContainsAny(config.site_meta[0], config.sites),)) if one_key else AllOf(),
        by=(MetaValue(*config.site_meta), MetaValue(*config.account_meta), MetaValue(*config.user_meta)),
        usage=tuple([ComponentUsage(name) for name in names]),
        window=Window(window.start, min(window.stop, as_of)),
        as_of=as_of,
    )
    groups = (await records.aggregate(query)).groups
    entries: list[Entry] = []
    for group in groups:
        site, account, user = group.key
        if config.sites and site not in config.sites:
            continue
        ticks = {name: usage.sums.amount_runtime for name, usage in zip(names, group.usage, strict=True)}
        minutes: dict[str, Fraction] = {}
        for resource in config.resources:
            recorded = config.recorded[resource]
            minutes[resource] = sum(ticks[name] for name in recorded.component) * recorded.scale / TICKS_PER_MINUTE
        entries.append((None if account is None else str(account), None if user is None else str(user), minutes))
    return add_up(entries)


Entry: TypeAlias = tuple[str | None, str | None, Minutes]
"""An account, a user, and the resource-minutes that the user consumed."""


def add_up(entries: Iterable[Entry]) -> RawUsage:
    """Sum up usage by account and user, ignoring case."""
    sums: defaultdict[str | None, dict[str | None, Minutes]] = defaultdict(dict)
    for account, user, minutes in entries:
        users, name = sums[fold_name(account) or None], fold_name(user) or None
        before = users.get(name, {})
        users[name] = {key: before.get(key, Fraction()) + minutes.get(key, Fraction()) for key in {**before, **minutes}}
    return sums


def convert_usage(config: WaldurConfig, raw: RawUsage) -> Mapping[str, AccountUsage]:
    """Return the usage of the accounts that the instance reports, in Waldur's units."""
    return {
        account: AccountUsage(
            _add_and_round(config, list(users.values())),
            {user: _add_and_round(config, [minutes]) for user, minutes in users.items() if user is not None},
        )
        for account, users in raw.items()
        if account is not None and config.selects(account)
    }


def amount(config: WaldurConfig, component: str, minutes: Minutes) -> Fraction:
    """Return the exact amount of one of the offering's components."""
    factors = config.backend_components[component].factors(component)
    return sum((minutes.get(resource, Fraction()) / factor for resource, factor in factors.items()), Fraction())


def _add_and_round(config: WaldurConfig, parts: Sequence[Minutes]) -> Mapping[str, Decimal]:
    return {
        component: round_amount(sum((amount(config, component, minutes) for minutes in parts), Fraction()))
        for component in config.backend_components
    }


def fold_name(name: str | None) -> str:
    """Return a name stripped and case-folded, or an empty string for None."""
    return (name or "").strip().casefold()


Tres: TypeAlias = Literal["AllocTRES", "ReqTRES"]

_SECOND: Final = timedelta(seconds=1)
_MEBIBYTE: Final = 2**20
_BYTES: Final = frozenset({"mem", "vmem"})
_COLUMNS: Final = 4


class SacctQuery(msgspec.Struct, frozen=True):
    """A call of sacct.

    Args:
        start: the beginning of the period, in ``zone`` and whole seconds, like ``stop``.
        all_runs: also print the earlier runs of a requeued job.
        accounts: print only these accounts; empty: all.
    """

    start: datetime
    stop: datetime
    zone: str
    tres: Tres
    all_runs: bool = True
    accounts: Sequence[str] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        """The time zone of the call, since sacct reads times without a zone. Its output has only durations."""
        return {"TZ": self.zone}

    def argv(self, config: WaldurConfig) -> Sequence[str]:
        return config.slurm.argv(
            "sacct",
            *("--parsable2", "--noheader"),
            *([f"--cluster={config.slurm.cluster_name}"] if config.slurm.cluster_name else []),
            *("--noconvert", "--truncate", "--allocations", "--allusers"),
            *(["--duplicates"] if self.all_runs else []),
            f"--starttime={_format_time(self.start)}",
            f"--endtime={_format_time(self.stop)}",
            *([f"--accounts={','.join(self.accounts)}"] if self.accounts else []),
            f"--format=Account,{self.tres},Elapsed,User",
        )


def exact_query(config: WaldurConfig, window: Window, *, as_of: datetime) -> SacctQuery:
    """Return the call whose results compare with the record store: in UTC, with every run, up to ``as_of``."""
    # With an end in the future, some versions of sacct count running jobs up to that end.
    return SacctQuery(window.start.astimezone(UTC), min(window.stop, as_of).astimezone(UTC), "UTC", config.slurm.tres)


def agent_query(config: WaldurConfig, month: BillingMonth) -> SacctQuery:
    """Return the call of the Waldur site agent, in the billing zone. The agent ends a month one second early."""
    window = month.window
    start, stop = window.start.astimezone(month.zone), (window.stop - _SECOND).astimezone(month.zone)
    return SacctQuery(start, stop, config.timezone, "ReqTRES", all_runs=False)


async def sacct_month_usage(
    config: WaldurConfig, context: Context, month: BillingMonth, *, as_of: datetime
) -> Mapping[str, AccountUsage]:
    """Return the usage of all accounts with usage, like :func:`month_usage`, from sacct.

    Suspended time does not count, since sacct leaves it out.

    Raises:
        CommandFailed: sacct failed, or its output cannot be parsed.
    """
    window = month.window
    if as_of <= window.start:
        return {}
    return convert_usage(config, await sacct_usage(config, context, exact_query(config, window, as_of=as_of)))


async def sacct_usage(config: WaldurConfig, context: Context, query: SacctQuery) -> RawUsage:
    """Return the exact usage according to sacct.

    Raises:
        CommandFailed: sacct failed, or its output cannot be parsed.
    """
    result = await context.run_command(
        query.argv(config),
        timeout=config.slurm.sacct_timeout,
        environment=query.environment,
        through=config.slurm.through,
    )
    # Some versions exit with 0 although they did not reach the database.
    if not result.stdout and b"error" in result.stderr.lower():
        raise CommandFailed(f"sacct: {result.stderr.decode(errors='replace').strip()[-400:]}")
    entries: list[Entry] = []
    unknown = 0
    for line in result.stdout.decode(errors="replace").splitlines():
        columns = line.split("|")
        if len(columns) != _COLUMNS:
            raise CommandFailed(f"sacct: expected account, resources, duration and user, got {line[:200]!r}")
        account, resources, elapsed, user = columns
        if quantities.is_missing(elapsed):
            unknown += 1
            continue
        try:
            entries.append((account, user, resource_minutes(config, resources, elapsed)))
        except InvalidRecord as error:
            raise CommandFailed(f"sacct: {error} in {line[:200]!r}") from error
    if unknown:
        context.log.warning("sacct gives no duration for %s: left out", counted(unknown, "job"))
    return add_up(entries)


def resource_minutes(config: WaldurConfig, resources: str, elapsed: str) -> Minutes:
    """Return the exact resource-minutes of a job, for the configured resources.

    ``resources`` looks like ``cpu=8,gres/gpu:a100=2,mem=4096M``, ``elapsed`` like ``32-00:00:00``.

    Raises:
        InvalidRecord: an amount or the duration cannot be parsed.
    """
    minutes = Fraction(quantities.parse_duration(elapsed)) / 60
    found: dict[str, Fraction] = {}
    for name in config.resources:
        text = quantities.sub_value(resources, name)
        size = Fraction(0 if quantities.is_missing(text) else quantities.parse_size(text))
        found[name] = (size / _MEBIBYTE if name in _BYTES else size) * minutes
    return found


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S")


class Source(Enum):
    """A source of usage, by its name on the command line."""

    STORE = "store"
    SACCT = "sacct"


class UsageSource:
    """The usage of an instance's accounts, from its source.

    Attributes:
        now: the time at which the source was opened, for all queries.
        as_of: the time up to which running jobs count. Records learn of a job's end later than sacct does.
    """

    def __init__(self, config: WaldurConfig, context: PluginContext, source: Source) -> None:
        self._config, self._context, self._source = config, context, source
        self.now: datetime = context.now()
        self.as_of = self.now - config.lag if source is Source.STORE else self.now

    async def month(self, month: BillingMonth) -> Mapping[str, AccountUsage]:
        """Return the usage of all accounts with usage, by case-folded name.

        Raises:
            AuditordError: the source cannot be read.
        """
        if self._source is Source.SACCT:
            return await sacct_month_usage(self._config, self._context, month, as_of=self.as_of)
        return await month_usage(self._config, self._context.records, month, as_of=self.as_of)

    async def covers(self, month: BillingMonth) -> bool:
        """Return True if the source is complete for a month, so that an absent account or user consumed nothing.

        The record store is complete if it has records from before the month. sacct is always trusted.
        """
        if self._source is Source.SACCT:
            return True
        since = await read_coverage_start(self._config, self._context.records)
        return since is not None and since <= month.window.start

    async def staleness(self) -> str | None:
        """Return the reason why lower amounts may be wrong, or None if the source is up to date. sacct always is.

        A site is up to date if one of its records began or ended recently. Without configured sites, one record of any
        site suffices.
        """
        if self._source is Source.SACCT:
            return None
        config, now = self._config, self.now
        seen: set[object] = set()
        for field in TimeField:
            recent = (
                TimeCompares(field, Comparison.GTE, now - config.stale_after),
                TimeCompares(field, Comparison.LTE, now),  # ignore records from the future, due to a wrong clock
            )
            sites = AggregateQuery(where=AllOf(recent), by=(MetaValue(*config.site_meta),), as_of=now)
            seen.update(group.key[0] for group in (await self._context.records.aggregate(sites)).groups)
        missing = [site for site in config.sites if site not in seen]
        if not missing and seen:
            return None
        since = f"began or ended since {(now - config.stale_after).isoformat(timespec='seconds')}"
        return f"no record of {', '.join(missing)} {since}" if missing else f"no record {since}"


async def read_coverage_start(config: WaldurConfig, records: Records) -> datetime | None:
    """Return the time since when every configured site has records, or None if a site has none.

    A site's records begin with the earliest end of a job: jobs that ended before the collector started are missing.
    Without configured sites, the earliest end at any site counts.
    """
    groups = (await records.aggregate(AggregateQuery(by=(MetaValue(*config.site_meta),)))).groups
    firsts = {group.key[0]: group.first_stop for group in groups}
    if not config.sites:
        return min(firsts.values(), default=None)
    return max(firsts[site] for site in config.sites) if firsts.keys() >= set(config.sites) else None
