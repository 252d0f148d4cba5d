"""Checks of the record store (connection, schema, clock, roll-ups, last record of each site) and its replica."""

import shutil
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio

from auditord.checks import Places, check_pair
from auditord.config.kinds import in_either_form, needed
from auditord.config.model import Configuration, StoreSection, forwarding_senders
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.errors import SchemaMismatch, StoreUnavailable
from auditord.hooks import Hooks
from auditord.store.feed import SENDERS
from auditord.store.opening import open_replica, open_store_for_reading
from auditord.store.silence import TIMES, site_activity
from auditord.store.store import RecordStore
from auditord_hookspecs import AggregateQuery, ComponentUsage, MetaValue, hookimpl
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.query import Comparison, TimeCompares, TimeField
from auditord_hookspecs.roles import SITE_KEYS
from auditord_hookspecs.vocabulary import QUANTITIES
from auditord_hookspecs.wording import counted

CLOCKS_DIFFER: Final = timedelta(seconds=5)
"""Above this, times of receipt and leases of turns are no longer comparable between hosts."""

AHEAD: Final = timedelta(minutes=5)
"""A job that ended further in the future shows that the clock of its host or of this one is wrong."""

RECENT: Final = timedelta(days=30)
"""Records that stopped in this time should have the components that reports and plugins need."""

_FEED_LAGS: Final = 3_600.0
"""Seconds; the roll-ups and the counts read new records within seconds."""


_BETWEEN_LOOKS: Final = 0.1
"""Seconds, which are included in the measured lag."""

_LONGEST: Final = timedelta(minutes=1)
"""A replica that is further behind is not waited for."""


@hookimpl
def feature_checks(configuration: Configuration, hooks: Hooks, now: Callable[[], datetime]) -> Places:
    yield "store", _check_records(configuration, needed(configuration, hooks.kinds), now)
    yield "store.replica", check_replica(configuration.store)


async def _check_records(
    configuration: Configuration, needs: Mapping[str, Sequence[str]], now: Callable[[], datetime]
) -> AsyncGenerator[Finding, None]:
    """Check the record store, up to the first failure that prevents further checks."""
    section = configuration.store
    if is_postgresql(section.url):
        async for finding in _check_server(section, now):
            yield finding
            if finding.severity is Severity.FAILURE:
                return
    elif not sqlite_path(section.url).exists():
        yield Finding(Severity.OK, "database", f"{sqlite_path(section.url)} does not exist yet: the daemon creates it")
        return
    try:
        async with open_store_for_reading(section) as store:
            counts = await store.counts()
            yield Finding(Severity.OK, "database", f"it answers, with {counted(counts.total, 'record')}")
            for consumer, lag in counts.lag(now()).items():
                if lag > _FEED_LAGS and consumer != "lake":  # the lake may sync only once a day
                    yield await _explain_lag(configuration, consumer, lag)
            async for finding in _check_content(store, needs, now()):
                yield finding
    except SchemaMismatch as error:
        yield Finding(Severity.FAILURE, "schema", str(error), "see the message")
    except StoreUnavailable as error:
        yield Finding(
            Severity.FAILURE, "database", str(error), "see the message; posted records are queued in the spool"
        )


async def _explain_lag(configuration: Configuration, consumer: str, lag: float) -> Finding:
    """Return why a consumer of the feed has not read old entries."""
    section = configuration.store
    remedy = "auditord status shows its state; figures are correct meanwhile, but sums take longer"
    if is_postgresql(section.url):
        from auditord.database.postgres.address import address_of  # noqa: PLC0415 psycopg, only if configured
        from auditord.store.postgres.administration import oldest_writer  # noqa: PLC0415 the same

        if (writer := await oldest_writer(address_of(section))) is not None:
            remedy = f"it waits for {writer}: end that transaction"
    text = f"it has not read a record that arrived {lag / 60:.0f} minutes ago"
    if consumer == SENDERS and not forwarding_senders(configuration):
        text = "changes by clients wait for a sender with from: api or all, and their records stay in the store"
        remedy = (
            "enable the sender again, and it forwards them; or run `auditord database end-forwarding`, unless another "
            "daemon of this store has such a sender"
        )
    return Finding(Severity.WARNING, f"consumer {consumer}", text, remedy)


async def _check_server(section: StoreSection, now: Callable[[], datetime]) -> AsyncGenerator[Finding, None]:
    from auditord.database.postgres.address import address_of  # noqa: PLC0415 psycopg, only if configured
    from auditord.store.postgres.administration import clock_offset, database_status  # noqa: PLC0415 the same

    for finding in check_pair(section.sslrootcert, section.sslcert, section.sslkey, now()):
        yield finding
    address = address_of(section)
    try:
        status, offset = await database_status(address), await clock_offset(address, now)
    except SchemaMismatch as error:
        yield Finding(Severity.FAILURE, "schema", str(error), "install the newer version of auditord again")
        return
    except StoreUnavailable as error:
        remedy = "check the server and store.url; posted records are queued in the spool meanwhile"
        yield Finding(Severity.FAILURE, "database", str(error), remedy)
        return
    yield Finding(Severity.OK, "server", f"PostgreSQL {status.server_version} at {status.where}")
    if status.pending:
        text = f"{counted(len(status.pending), 'migration is', 'migrations are')} pending"
        yield Finding(Severity.FAILURE, "schema", text, "auditord database migrate")
    else:
        yield Finding(Severity.OK, "schema", f"{len(status.applied)}, which is up to date")
    if shutil.which("pg_dump") is None:
        text = "pg_dump is not installed: backups leave out the records"
        yield Finding(Severity.WARNING, "pg_dump", text, "install PostgreSQL's client programs")
    text = f"the database's clock differs from this host's by {offset.total_seconds():+.1f} s"
    if abs(offset) > CLOCKS_DIFFER:
        yield Finding(Severity.FAILURE, "clock", text, "synchronise both hosts (chronyd, systemd-timesyncd)")
    else:
        yield Finding(Severity.OK, "clock", text)


async def _check_content(
    store: RecordStore, needs: Mapping[str, Sequence[str]], now: datetime
) -> AsyncGenerator[Finding, None]:
    is_ahead = TimeCompares(TimeField.STOP, Comparison.GT, now + AHEAD)
    ahead = sum(group.records for group in (await store.aggregate(AggregateQuery(is_ahead))).groups)
    if ahead:
        text = f"{counted(ahead, 'record')} stopped in the future"
        yield Finding(Severity.WARNING, "clocks", text, "check the clocks of this host and of the batch system")
    for each in await site_activity(store, now):
        subject = f"site {each.site}" if each.site else "records without site_id"
        silent = now - each.last
        text = f"{counted(each.records, 'record')} in 90 days, the last ended {silent / timedelta(days=1):.1f} days ago"
        if each.is_gap(now):
            usual = (each.usual or timedelta(0)) / timedelta(days=1)
            text += f", more than {TIMES} times its usual interval of {usual:.1f} days"
            yield Finding(Severity.WARNING, subject, text, "check its collector: auditord status, auditord audit")
        else:
            yield Finding(Severity.OK, subject, text)
    # Some recent records of each site should have the components that reports and plugins need. Cells answer for days.
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    names = [name for name in needs if (known := QUANTITIES.get(name)) is None or not known.absent_is_zero]
    by, usage = (MetaValue(*SITE_KEYS),), tuple(map(ComponentUsage, names))
    query = AggregateQuery(TimeCompares(TimeField.STOP, Comparison.GTE, today - RECENT), by, usage)
    for group in (await store.aggregate(query)).groups:
        for name, used in zip(names, group.usage, strict=True):
            if not used.known:
                where = f"of site {group.key[0]}" if group.key[0] else "without site_id"
                records = f"{counted(group.records, 'record')} {where}"
                text = f"none of the {records} in the last 30 days has {in_either_form(name)}"
                remedy = f"have its collector or sender record it: {', '.join(needs[name])} need it"
                yield Finding(Severity.WARNING, "components", text, remedy)


async def check_replica(section: StoreSection) -> AsyncGenerator[Finding, None]:
    """Check that the replica answers and follows the database, and measure its lag."""
    if section.replica is None:
        return
    subject, remedy = (
        "replica",
        "repair its replication (pg_stat_replication on that server); store.url answers all reads meanwhile",
    )
    try:
        async with open_store_for_reading(section) as primary, open_replica(section, primary) as replica:
            with anyio.move_on_after(min(section.replica_max_lag, _LONGEST).total_seconds()):
                while replica.lag is None:
                    await replica.look()
                    await anyio.sleep(_BETWEEN_LOOKS)
            lag = replica.lag
    except SchemaMismatch as error:
        yield Finding(
            Severity.FAILURE, subject, str(error), "set store.replica to a standby of store.url's server, or remove it"
        )
    except StoreUnavailable as error:
        text = "check both servers and store.replica; store.url answers long reads meanwhile"
        yield Finding(Severity.WARNING, subject, str(error), text)
    else:
        if lag is None:
            text = f"it is more than {min(section.replica_max_lag, _LONGEST).total_seconds():g} s behind"
            yield Finding(Severity.WARNING, subject, text, remedy)
        else:
            yield Finding(Severity.OK, subject, f"a standby of the database, at most {lag:.1f} s behind")
