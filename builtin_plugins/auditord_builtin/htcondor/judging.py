"""From ads to a batch."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from anyio import to_thread

from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import Converted, Skipped, convert_row, ended_at
from auditord_builtin.htcondor.identity import identity
from auditord_hookspecs import Batch, CollectorContext, InvalidRecord, Quarantined, Window
from auditord_hookspecs.mapping import Row

REMEMBERED: Final = timedelta(days=8)
"""How long it is known that an ad has been dealt with; after that it may be sent again, which changes nothing."""


async def judge(
    config: HTCondorConfig, context: CollectorContext, rows: Sequence[Row], unreadable: Sequence[str] = ()
) -> Batch:
    """A batch of all that is new among the ads, without a checkpoint.

    When a period or a job is collected again, all of it is new.
    """
    named = {identity(row, epochs=config.epochs): row for row in rows}
    broken = {_fingerprint(line): line for line in unreadable}
    again = context.window is not None or context.job is not None
    known = frozenset[str]() if again else await context.seen([*named, *broken])
    # In a thread: thousands of ads take seconds, in which the daemon has requests to answer.
    batch, remarks = await to_thread.run_sync(_judged, config, named, broken, known, context.now() + REMEMBERED)
    if remarks:  # one line and not one per job: users write what labels are made of
        context.log.warning("labels left out: %d, such as %s", len(remarks), remarks[0])
    return batch


def _judged(
    config: HTCondorConfig,
    named: Mapping[str, Row],
    broken: Mapping[str, str],
    known: Collection[str],
    remember_until: datetime,
) -> tuple[Batch, Sequence[str]]:
    judged = [convert_row(config, row) for name, row in named.items() if name not in known]
    batch = Batch(
        records=[one.record for one in judged if isinstance(one, Converted)],
        quarantined=[
            *(one for one in judged if isinstance(one, Quarantined)),
            *(_stray(key, line) for key, line in broken.items() if key not in known),
        ],
        skipped=dict(Counter(one.reason for one in judged if isinstance(one, Skipped))),
        seen=dict.fromkeys({*named, *broken}.difference(known), remember_until),
    )
    return batch, list(_remarks(judged))


def _remarks(judged: Iterable[object]) -> Iterable[str]:
    for one in judged:
        if isinstance(one, Converted):
            for reason in one.left_out:
                yield f"{one.record.record_id}: {reason}"


def _fingerprint(line: str) -> str:
    return f"stray/{hashlib.sha256(line.encode()).hexdigest()[:16]}"


def _stray(key: str, line: str) -> Quarantined:
    return Quarantined(key, {"line": line}, f"output that belongs to no job: {line[:80]!r}")


def wanted_again(config: HTCondorConfig, context: CollectorContext, rows: Sequence[Row]) -> Sequence[Row]:
    """Those of the ads that are to be collected again: one job's, or a period's."""
    job, window = context.job, context.window
    if job is not None:
        return [row for row in rows if job.job_id in {row.get("ClusterId"), _job_id(row)}]
    return rows if window is None else [row for row in rows if ended_within(config, row, window)]


def _job_id(row: Row) -> str:
    return f"{row.get('ClusterId')}.{row.get('ProcId')}"


def ended_within(config: HTCondorConfig, row: Row, window: Window) -> bool:
    """Whether the job ended within the window; also if its end is unknown or unreadable, or nobody would look."""
    try:
        end = ended_at(config, row)
    except InvalidRecord:
        return True
    return end is None or window.start <= end < window.stop
