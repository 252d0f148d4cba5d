"""The records of a store on their way to the lake."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, TypeAlias

from auditord.errors import ConfigurationError
from auditord.lake.table import LakePosition, LakeTable
from auditord.store import RecordStore
from auditord.store.lake import LakeDiverged, LakeState

BATCH_CHANGES: Final = 20_000
"""Changes of one commit: what is kept in memory, some 60 MB."""

_Log: TypeAlias = "logging.LoggerAdapter[logging.Logger]"


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of a run."""

    records: int
    batches: int


async def sync(store: RecordStore, table: LakeTable, daemon: str, log: _Log) -> Synced:
    """Sync all that has changed; a store that the lake does not know is synced as a whole.

    Args:
        store: has the records.
        table: of the lake.
        daemon: the name of the records in the lake.
        log: receives why everything is synced again.

    Raises:
        ConfigurationError: the lake has records of another store under this name.
        StoreUnavailable: store or lake cannot be used now; all that has been done stays.
    """
    state = await _begun(store, table, daemon)
    try:
        return await _sync(store, table, daemon, state)
    except LakeDiverged as error:
        log.warning("%s It was restored, or the lake was: all records are synced again.", error)
        state = await _begin(store, table, daemon, state.lake_id)
        return await _sync(store, table, daemon, state)


async def _begun(store: RecordStore, table: LakeTable, daemon: str) -> LakeState:
    """The state of a store whose records are noted for this lake."""
    lake_id, state = await asyncio.to_thread(table.open), await store.lake_state()
    return state if state.lake_id == lake_id else await _begin(store, table, daemon, lake_id)


async def _begin(store: RecordStore, table: LakeTable, daemon: str, lake_id: str) -> LakeState:
    """Begin with an empty part of the lake. Killed at any moment, the next run begins again."""
    state = await store.begin_lake()
    await asyncio.to_thread(table.forget, daemon, state.store_id)
    await store.fill_lake(lake_id)
    return LakeState(state.store_id, lake_id, state.given)


async def _sync(store: RecordStore, table: LakeTable, daemon: str, state: LakeState) -> Synced:
    records = batches = 0
    while True:
        position = await _position(table, daemon, state)
        batch = await store.lake_batch(position.batch, BATCH_CHANGES)
        if batch.number == position.batch:
            if position.is_filling:
                await asyncio.to_thread(table.finish, daemon, position)
            return Synced(records, batches)
        await asyncio.to_thread(table.write, daemon, position, batch)
        records, batches = records + len(batch.records), batches + 1
        del batch  # the next one is as large


async def _position(table: LakeTable, daemon: str, state: LakeState) -> LakePosition:
    position = await asyncio.to_thread(table.position, daemon)
    if position is None:
        raise LakeDiverged(f"The lake {table.location} does not know any more what it has of {daemon}.")
    if position.store_id != state.store_id:
        raise ConfigurationError(
            f"lake.name: another record store syncs its records to {table.location} under the name {daemon}: choose "
            "another name."
        )
    return position
