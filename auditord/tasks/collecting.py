"""A collector's run: batch by batch into the spool."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

from auditord.spool import Enqueued
from auditord.tasks.running import Tally
from auditord_hookspecs import Batch, CollectorContext, CollectorKind

Keep: TypeAlias = Callable[[Batch], Awaitable[Enqueued]]


async def collect(
    kind: CollectorKind[Any],  # Any: each kind has its own configuration model
    config: Any,  # Any: the kind's own model
    context: CollectorContext,
    keep: Keep,
    tally: Tally,
) -> None:
    """Run a collector once; the next batch is asked for only after the last one has been kept.

    Args:
        kind: what to run.
        config: its section of the configuration.
        context: what it is lent.
        keep: makes a batch durable (or shows it); what it raises ends the run.
        tally: where the run is counted.
    """
    batches = kind.collect(config, context)
    if not isinstance(batches, AsyncGenerator):
        await _keep_all(batches, keep, tally)
        return
    async with aclosing(batches):  # cancelled or failed, the collector's own clean-up comes before the report
        await _keep_all(batches, keep, tally)


async def _keep_all(batches: AsyncIterator[Batch], keep: Keep, tally: Tally) -> None:
    async for batch in batches:
        kept = await keep(batch)
        tally.records += kept.records
        tally.quarantined += kept.quarantined
        tally.skipped.update(batch.skipped)
