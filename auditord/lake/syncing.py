"""Sync of a store's records to the lake, and release of old records from the store.

A run killed at any point is resumed by the next one. Each batch builds on the previous one, see
:mod:`auditord.store.releasing`. To release records, their rows in the lake get a release number. The rows are read
back, and the store deletes the records that still equal their rows. Release numbers that were committed but not
processed are processed first.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Final

import msgspec

from auditord.database.instants import to_micros
from auditord.errors import ConfigurationError
from auditord.lake.data_files import LakeDamaged
from auditord.lake.manifests import LakeRefused
from auditord.lake.pruning import match_daemon
from auditord.lake.schema import RECORD_COLUMNS, records_of
from auditord.lake.table import LakeTable
from auditord.lake.writing import Partition
from auditord.store.lake import LakeDiverged, LakeMiscounted, LakeState, ReleasedRow
from auditord.store.store import RecordStore
from auditord_hookspecs.wording import counted

_arrow: Any = import_module("pyarrow")  # Any: it ships no types
_compute: Any = import_module("pyarrow.compute")

BATCH_CHANGES: Final = 20_000
"""Changes in one commit, which take about 60 MB of memory."""
_RELEASES_AT_ONCE: Final = 50
"""Releases read back at a time."""


class Synced(msgspec.Struct, frozen=True):
    """The result of a run."""

    records: int
    batches: int


async def sync(
    store: RecordStore, table: LakeTable, daemon: str, log: "logging.LoggerAdapter[logging.Logger]"
) -> Synced:
    """Sync all changes of a store. A store that the lake does not know is synced completely.

    A warning with the reason is logged if all records are synced again.

    Raises:
        ConfigurationError: the lake has records of another store under this name, or lacks released records.
        StoreUnavailable: the store or the lake is unavailable; finished batches are kept.
    """
    lake_id, state = await asyncio.to_thread(table.open), await store.lake_state()
    if state.records and state.released_in != lake_id:
        raise ConfigurationError(
            f"lake: {table.location} is not the table to which this record store has released records, which is at "
            f"{state.location}: correct lake.catalog and lake.warehouse, or restore that table."
        )
    if state.lake_id != lake_id:
        state = await _begin(store, table, daemon, lake_id)
    position = await asyncio.to_thread(table.position, daemon)
    if position is not None and position.release > state.release:  # a run was killed, or the store is an older state
        await _take_back(store, table, daemon)  # before a later snapshot is noted
    try:
        return await _sync(store, table, daemon, state)
    except LakeDiverged as error:
        log.warning("%s The record store or the lake was restored: all records are synced again.", error)
        state = await _begin(store, table, daemon, state.lake_id)
        return await _sync(store, table, daemon, state)


async def release(store: RecordStore, table: LakeTable, daemon: str, is_old: Callable[[Partition], bool]) -> int:
    """Release the records of old partitions unless a full sync is incomplete, and return their number.

    Raises:
        StoreUnavailable: the store or the lake is unavailable; finished releases are kept.
    """
    state, position = await store.lake_state(), await asyncio.to_thread(table.position, daemon)
    if position is None or position.is_filling:
        return 0
    await asyncio.to_thread(table.check_released, daemon, await store.list_released())
    await store.catch_up()
    released = 0
    if position.release > state.release:  # a run was killed
        released += await _delete(store, table, daemon, state.release, position.release)
    if kept := await store.list_recalled_and_kept(position.batch):
        position = await asyncio.to_thread(table.unmark, daemon, position, kept)
        await store.forget_recalled(kept, position.release, await asyncio.to_thread(table.newest))
    read = await store.read_by_all()
    while (after := await asyncio.to_thread(table.mark, daemon, position, is_old, read)) != position:
        released += await _delete(store, table, daemon, position.release, after.release)
        position = after
    if (await store.lake_state()).records:
        await store.forget_recalled((), position.release, await asyncio.to_thread(table.newest))
    return released


async def _begin(store: RecordStore, table: LakeTable, daemon: str, lake_id: str) -> LakeState:
    """Start a full sync: delete the daemon's rows except its released records.

    If it is killed at any point, the next run starts again.
    """
    await store.begin_lake()
    await _take_back(store, table, daemon)
    position, released = await asyncio.to_thread(table.position, daemon), await store.list_released()
    await asyncio.to_thread(table.forget, daemon, position, released)
    if released.recalled:
        await store.forget_recalled(list(released.recalled), 0, await asyncio.to_thread(table.newest))
    await store.fill_lake(lake_id)
    return await store.lake_state()


async def _take_back(store: RecordStore, table: LakeTable, daemon: str) -> None:
    """Take back released records that the newest snapshot lacks.

    This happens if the store was restored from a backup and these records were changed after the backup.
    """
    released = await store.list_released()
    if released.state.records:
        missing = await asyncio.to_thread(table.missing, daemon, released)
        await store.recall([row.record_id for row in missing])


async def _sync(store: RecordStore, table: LakeTable, daemon: str, state: LakeState) -> Synced:
    records = batches = 0
    last = await store.end_of_feed()  # else a run would not end while records keep arriving
    while True:
        position = await asyncio.to_thread(table.position, daemon)
        if position is None:
            raise LakeDiverged(f"The lake {table.location} no longer knows how far {daemon} has synced.")
        if position.store_id != state.store_id:
            raise ConfigurationError(
                f"lake.name: another record store syncs its records to {table.location} under the name {daemon}: "
                "choose another name."
            )
        batch = await store.lake_batch(position.batch, BATCH_CHANGES, last)
        if batch.is_empty:
            if position.is_filling:
                await asyncio.to_thread(table.finish, daemon, position)
            return Synced(records, batches)
        await asyncio.to_thread(table.write, daemon, position, batch)
        if batch.recalled:
            await store.forget_recalled(list(batch.recalled), 0, await asyncio.to_thread(table.newest))
        records, batches = records + len(batch.records), batches + 1
        del batch  # free it before the next one, which is as large


async def _delete(store: RecordStore, table: LakeTable, daemon: str, previous: int, last: int) -> int:
    """Read the rows of some releases back, delete their records from the store, and return the number deleted.

    A release number may have no rows left.
    """
    snapshot, released = await asyncio.to_thread(table.newest), 0
    for first in range(previous + 1, last + 1, _RELEASES_AT_ONCE):
        numbers = range(first, min(first + _RELEASES_AT_ONCE, last + 1))
        releases = table.releases(daemon, snapshot.snapshot_id, numbers)
        while rows := await asyncio.to_thread(next, releases, ()):
            released += await store.release(rows, previous, snapshot)
            previous = rows[0].release
    if previous < last:
        await store.forget_recalled((), last, snapshot)
    return released


@dataclass
class Verified:
    """The result of a verification.

    Args:
        records: number of released records that were read and are in the store's index.
        expected: number of released records in the store's index.
        findings: a sentence for each fault.
    """

    records: int = 0
    expected: int = 0
    findings: list[str] = field(default_factory=list[str])


async def verify(
    store: RecordStore,
    table: LakeTable,
    daemon: str,
    progressed: Callable[[int, int], None] = lambda _done, _total: None,
) -> Verified:
    """Read every released row of the newest snapshot, and compare its id and release with the store's index.

    Also compare the number of the daemon's rows, released or not, with the number that it has written, and the files of
    all daemons with those that were written.

    ``progressed`` is called with the number of records verified so far and the number expected.
    """
    released = await store.list_released()
    state, recalled = released.state, set(released.recalled)
    result, hashes = Verified(expected=state.records), array("q")  # 8 bytes for each of millions of records
    for check in (partial(table.check_rows, daemon), table.check_files):
        try:
            await asyncio.to_thread(check)
        except (LakeMiscounted, LakeDamaged, LakeRefused) as error:
            result.findings.append(str(error))
    batches = table.rows(match_daemon(daemon, state.release), RECORD_COLUMNS)
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        copies = await asyncio.to_thread(list, records_of(batch))
        rows = {ReleasedRow(each.record.record_id, each.release, to_micros(each.stop_time)) for each in copies}
        rows -= recalled
        known = rows & set(await store.find_released([row.record_id for row in rows]))
        hashes.extend(hash(row.record_id) for row in known)
        result.records += len(known)
        progressed(result.records, result.expected)
        unknown = sorted(row.record_id for row in rows - known)
        result.findings += [
            f"{each!r} is released in the lake, but the record store does not know it" for each in unknown
        ]
    distinct: int = _compute.count_distinct(_arrow.array(hashes, _arrow.int64())).as_py()
    if repeated := result.records - distinct:
        result.findings.append(f"released records have {counted(repeated, 'row')} too many")
    result.records = distinct
    if result.records != result.expected:
        result.findings.append(f"the lake has {result.records:,} of {counted(result.expected, 'released record')}")
    return result
