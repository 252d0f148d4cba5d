"""A collector's run: batch by batch into the spool."""

from collections.abc import AsyncIterator, Awaitable, Callable
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
    try:
        async for batch in batches:
            kept = await keep(batch)
            tally.records += kept.records
            tally.quarantined += kept.quarantined
            tally.skipped.update(batch.skipped)
    finally:  # cancelled or failed, the collector's own clean-up comes before the report
        await _close(batches)


async def _close(batches: AsyncIterator[Batch]) -> None:
    aclose: Callable[[], Awaitable[None]] | None = getattr(batches, "aclose", None)
    if aclose is not None:  # an async generator; any other iterator has nothing to close
        await aclose()
