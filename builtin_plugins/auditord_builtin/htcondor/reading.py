"""A schedd's answer, and whether it has a gap.

``condor_history`` ends with exit code 0 also when the schedd has stopped at its ``HISTORY_HELPER_MAX_HISTORY``: the
newest ads came, and nothing tells that older ones did not. So an answer must prove that it is whole:

1. it holds an ad that an earlier whole answer held (ads come newest first, so nothing is missing before that one), or
2. the oldest ad of the history, asked for separately, is its last one, or it is shorter than any limit, or
3. its last hundred ads were all over long before the time of interest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from auditord_builtin.htcondor.checkpoint import ANCHORS, Position
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import ended_at
from auditord_builtin.htcondor.identity import can_stop, identity
from auditord_builtin.htcondor.printed import Printed
from auditord_builtin.htcondor.query import Query, run_query
from auditord_hookspecs import CollectorContext, InvalidRecord
from auditord_hookspecs.mapping import Row

_WITNESSES: Final = 100

_GAP: Final = (
    "its answer may have a gap, since it does not reach what was read before: raise HISTORY_HELPER_MAX_HISTORY there "
    "(or scan_limit and helper_max_history here), or read its files with history_paths; what came was accounted for"
)
_EMPTY: Final = "its history is empty, and was not; if that is right, this is over when the next job leaves its queue"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a schedd said.

    Args:
        rows: the ads that are to be looked at, the newest first.
        unreadable: lines that belong to no ad.
        names: those of all ads of the answer, the newest first.
        doubt: why something may be missing of what the history holds; None if nothing can be.
        replaced: whether it holds nothing that was read before: rotated too far, or begun anew.
    """

    rows: Sequence[Row]
    unreadable: Sequence[str]
    names: Sequence[str]
    doubt: str | None
    replaced: bool = False


async def read_new(config: HTCondorConfig, context: CollectorContext, schedd: str, position: Position) -> Answer:
    """What has come into the history since the position."""
    only_newest = position.first and position.earliest >= context.now() - timedelta(seconds=1)
    query = Query(schedd, _stop(position), ANCHORS if only_newest else None)
    printed = await run_query(config, context, query)
    names = names_of(config, printed.rows)
    known = set(position.anchors)
    place = next((number for number, name in enumerate(names) if name in known), None)
    if place is not None:
        return Answer(printed.rows[:place], printed.unreadable, names, doubt=None)
    rows = printed.rows[: _reaching(config, printed.rows, position.earliest)] if position.first else printed.rows
    if not names and position.anchors:  # also what is left of an answer that was cut before its first byte
        return Answer(rows, printed.unreadable, names, _EMPTY)
    whole = only_newest or await _reaches(config, context, schedd, printed, position.until or position.earliest)
    return Answer(rows, printed.unreadable, names, None if whole else _GAP, replaced=bool(position.anchors))


def _stop(position: Position) -> str | None:
    """The last ad that is remembered, so that the others show up; none if there are no others."""
    usable = [name for name in position.anchors if can_stop(name)]
    return usable[-1] if len(usable) > 1 else None


async def read_all(config: HTCondorConfig, context: CollectorContext, schedd: str, since: datetime) -> Answer:
    """The whole history, as far as it matters for jobs that ended since then."""
    printed = await run_query(config, context, Query(schedd))
    whole = await _reaches(config, context, schedd, printed, since)
    return Answer(printed.rows, printed.unreadable, names_of(config, printed.rows), None if whole else _GAP)


def names_of(config: HTCondorConfig, rows: Sequence[Row]) -> list[str]:
    """The names of the ads."""
    return [identity(row, epochs=config.epochs) for row in rows]


def _reaching(config: HTCondorConfig, rows: Sequence[Row], earliest: datetime) -> int:
    """How many ads, from the newest, are up to the last one that ended since then.

    Not those alone that ended since then: a job may stay in the queue for days after its end, and come late.
    """
    within = [number for number, row in enumerate(rows, start=1) if not _ended_before(config, row, earliest)]
    return max(within, default=0)


def _ended_before(config: HTCondorConfig, row: Row, moment: datetime) -> bool:
    try:
        end = ended_at(config, row)
    except InvalidRecord:
        return False
    return end is not None and end < moment


async def _reaches(
    config: HTCondorConfig, context: CollectorContext, schedd: str, printed: Printed, moment: datetime
) -> bool:
    """Whether the answer goes back to the moment, or to the beginning of the history."""
    witnesses = printed.rows[-_WITNESSES:]
    if len(witnesses) == _WITNESSES and all(_ended_before(config, row, moment - config.overlap) for row in witnesses):
        return True
    return await _is_everything(config, context, schedd, printed.rows)


async def _is_everything(config: HTCondorConfig, context: CollectorContext, schedd: str, rows: Sequence[Row]) -> bool:
    """Whether the history holds no more than these ads.

    A schedd that does not understand "oldest first" answers with its newest ad; then only the number tells.
    """
    probe = (await run_query(config, context, Query(schedd, limit=1, oldest_first=True))).rows
    if not rows or not probe:
        return not rows and not probe
    names = names_of(config, rows)
    found = names_of(config, probe)[0]
    if found == names[-1]:
        return True
    misunderstood = found == names[0] or (found not in names and _entered(probe[0]) > _entered(rows[0]))
    return misunderstood and len(rows) < config.helper_max_history


def _entered(row: Row) -> int:
    text = row.get("EnteredCurrentStatus", "")
    return int(text) if text.isdecimal() else 0
