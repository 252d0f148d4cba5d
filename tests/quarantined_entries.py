"""The entries of a quarantine with their raw input, read as the commands read them: a page, then one by one."""

from collections.abc import Sequence

from auditord.spool import QuarantineEntry, Spool


async def read_quarantine(spool: Spool, task: str | None = None) -> Sequence[QuarantineEntry]:
    """Return the first thousand entries, of one task or of all."""
    entries = [await spool.quarantine_get(each.quarantine_id) for each in await spool.quarantine_summaries(task)]
    return [entry for entry in entries if entry is not None]
