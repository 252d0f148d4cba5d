"""Lake checks for the doctor (libraries, table, this daemon's records, backlog) and a warning for the daemon's log."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime, timedelta
from shlex import quote
from typing import Final

from auditord.checks import Places, check_tokens
from auditord.config.model import Configuration
from auditord.errors import ConfigurationError, SchemaMismatch, StoreUnavailable
from auditord.lake.opening import ConfiguredLake, lake_module
from auditord.store.lake import LakeState
from auditord.store.opening import open_store_for_reading
from auditord.store.store import RecordStore
from auditord_hookspecs import hookimpl
from auditord_hookspecs.checks import Finding, Severity, check_extra
from auditord_hookspecs.wording import counted

_LATE: Final = timedelta(hours=1)
_MANY: Final = 20_000
"""Changes in one commit. Fewer may have come since the last run, and a failed run is a finding about the daemon."""

_CLIENTS: Final = {"spark": ("pyspark", "lake-spark"), "trino": ("trino", "lake-trino")}
"""Client library of each engine, and the extra that installs it."""

_FOREIGN: Final = (
    "another program wrote them, and sums over the lake include them: find out who can write to the catalog and the "
    "files, then let the daemon of that name sync all its records again:"
)
_REMEDY: Final = "correct lake.catalog, lake.warehouse and their secrets"

_log: Final = logging.getLogger(__name__)


@hookimpl
def feature_checks(configuration: Configuration, now: Callable[[], datetime]) -> Places:
    yield "lake", _check_lake(configuration, now)


@hookimpl
def feature_work(configuration: Configuration, store: RecordStore, start_soon: Callable[..., object]) -> None:
    """Warn once if changes pile up for a lake that is not enabled."""
    if not configuration.lake.enabled:
        start_soon(_warn_of_changes, store)


async def _warn_of_changes(store: RecordStore) -> None:
    with suppress(StoreUnavailable):
        if (await store.lake_state()).lake_id:
            waiting = counted(await store.lake_waiting(), "change waits", "changes wait")
            _log.warning("%s for a lake that is not enabled: enable it again, or run `auditord lake end`", waiting)


async def _check_lake(configuration: Configuration, now: Callable[[], datetime]) -> AsyncGenerator[Finding, None]:
    """Check a configured lake. The table is checked only if all libraries are installed."""
    if not configuration.lake.is_there:
        return
    libraries = [check_extra(module, "lake") for module in ("pyarrow", "pyiceberg")]
    if (client := _CLIENTS.get(configuration.lake.engine)) is not None:
        libraries.append(check_extra(*client))
    for finding in libraries:
        yield finding
    for finding in check_tokens(configuration.lake, now()):
        yield finding
    state, waiting = LakeState(), 0
    if configuration.lake.enabled:
        with suppress(StoreUnavailable, SchemaMismatch):  # the store's own checks report it
            async with open_store_for_reading(configuration.store) as store:
                state, waiting = await store.lake_state(), await store.lake_waiting()
    if configuration.lake.enabled and not state.lake_id:
        yield Finding(Severity.OK, "table", "nothing has been synced yet")
    elif all(finding.severity is Severity.OK for finding in libraries):
        for finding in await asyncio.to_thread(lambda: list(_table(configuration, state, waiting, now()))):
            yield finding


def _table(configuration: Configuration, state: LakeState, waiting: int, now: datetime) -> Iterator[Finding]:
    daemon, syncs = configuration.lake.name or "", configuration.lake.enabled  # the model requires a name then
    with closing(ConfiguredLake(configuration)) as lake:
        try:
            facts, unaccounted = lake.table.facts(), lake.table.count_unaccounted()
            if state.records and lake.table.newest().lake_id != state.released_in:
                text = f"records were released to the table {state.location}, not to {lake.warehouse}"
                yield Finding(Severity.FAILURE, "released", text, _REMEDY)
            if syncs:
                lake_module("positions").refuse_mixed(facts.positions, daemon, state.store_id)
        except StoreUnavailable as error:
            yield Finding(Severity.FAILURE, "table", str(error), _REMEDY)
            return
        except ConfigurationError as error:
            yield Finding(Severity.FAILURE, "table", str(error), "see the message")
            return
        try:
            lake.table.check_rows()
        except StoreUnavailable as error:
            yield Finding(Severity.FAILURE, "rows", str(error), "see the message")
    for name, count in sorted(unaccounted.items()):
        text = f"{counted(count, 'row')} under the name {name or '(none)'} did not come from a batch of that daemon"
        yield Finding(Severity.FAILURE, "origin", text, f"{_FOREIGN} `auditord lake forget {quote(name)}`")
    if syncs and daemon not in facts.positions:
        text = f"it has no records of {daemon}, although some were synced: it is another table, or was emptied"
        yield Finding(
            Severity.WARNING, "table", text, f"{_REMEDY}; if the table is right, the next run syncs all records again"
        )
    else:
        summary = f"{counted(facts.records, 'record')} of {counted(len(facts.positions), 'daemon')}"
        yield Finding(Severity.OK, "table", f"{summary} at {lake.warehouse}")
    if syncs:
        age = None if facts.committed_at is None else now - facts.committed_at
        last = "no commit yet" if age is None else f"last commit {int(age.total_seconds() // 60)} min ago"
        text = f"{last}, {counted(waiting, 'change')} not synced yet"
        if waiting > _MANY and (age is None or age > _LATE):
            remedy = "see the runs of `lake` in `auditord status`, or `auditord lake run`"
            yield Finding(Severity.WARNING, "backlog", text, remedy)
        else:
            yield Finding(Severity.OK, "backlog", text)
