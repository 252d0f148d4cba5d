"""From the rows of one page of accounting to a batch."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from auditord_builtin.slurm.config import JobsConfig
from auditord_builtin.slurm.conversion import Converted, Skipped, convert_run, ended_at, run_key
from auditord_builtin.slurm.states import ENDED, parse_state
from auditord_builtin.slurm.table import FIRST_COLUMN, Run, Table, group_runs
from auditord_hookspecs import Batch, InvalidRecord, Quarantined, Window
from auditord_hookspecs.mapping import is_missing


@dataclass(frozen=True, slots=True)
class Found:
    """What a page holds.

    Args:
        runs: the runs to account for, by key.
        unfinished: how many runs are not over.
        quarantined: what no run could be made of, by key.
        endless: runs that are over by their state, but have no end (yet), by key.
    """

    runs: Mapping[str, Run]
    unfinished: int
    quarantined: Mapping[str, Quarantined]
    endless: Mapping[str, Run] = field(default_factory=dict[str, Run])


def find_runs(table: Table, window: Window | None) -> Found:
    """Sort the rows of a page: runs that ended within the window (without one: that are not over), and what is left.

    sacct includes both ends of a window, and without states also prints jobs that ended later; these belong to other
    pages.
    """
    runs: dict[str, Run] = {}
    endless: dict[str, Run] = {}
    broken = {_fingerprint(line): _stray_line(line) for line in table.unreadable}
    unfinished = 0
    for item in group_runs(table.rows):
        if not isinstance(item, Run):
            broken[_fingerprint(repr(item))] = _stray_step(item)
        elif is_over(item) is (window is None):
            unfinished += window is not None
        elif window is not None and has_no_end(item):
            endless[run_key(item)] = item
        elif window is None or _ended_within(item, window):
            runs[run_key(item)] = item
    return Found(runs, unfinished, broken, endless)


def is_over(run: Run) -> bool:
    """Whether nothing more will happen to the run."""
    return bool(_end_of(run)) or parse_state(run.allocation["State"]) in ENDED.values()


def has_no_end(run: Run) -> bool:
    """Whether sacct names no end; an unreadable one is no missing one."""
    return is_missing(run.allocation["End"])


def _end_of(run: Run) -> datetime | str | None:
    try:
        return ended_at(run)
    except InvalidRecord as error:
        return str(error)


def _ended_within(run: Run, window: Window) -> bool:
    """Whether the page must deal with the run; also if its end is unreadable, or nobody would."""
    end = _end_of(run)
    return not isinstance(end, datetime) or window.start <= end < window.stop


def classify_runs(
    config: JobsConfig, found: Found, known: Collection[str], remember_until: datetime
) -> tuple[Batch, Sequence[str]]:
    """A batch of all that is new, without a checkpoint; and remarks on labels that were left out, for the log."""
    classified = [convert_run(config, run) for key, run in found.runs.items() if key not in known]
    batch = Batch(
        records=[one.produced for one in classified if isinstance(one, Converted)],
        quarantined=[
            *(one for one in classified if isinstance(one, Quarantined)),
            *(one for key, one in found.quarantined.items() if key not in known),
        ],
        skipped=_counted(classified, found),
        seen=dict.fromkeys({*found.runs, *found.quarantined}.difference(known), remember_until),
    )
    return batch, list(_remarks(classified))


def _counted(classified: Iterable[object], found: Found) -> Mapping[str, int]:
    reasons = Counter(one.reason for one in classified if isinstance(one, Skipped))
    if found.unfinished:
        reasons["not over yet"] += found.unfinished
    if found.endless:
        reasons["over, but its end is not known yet"] += len(found.endless)
    return dict(reasons)


def _remarks(classified: Iterable[object]) -> Iterable[str]:
    for one in classified:
        if isinstance(one, Converted):
            for reason in one.left_out:
                yield f"{one.produced.record.record_id}: {reason}"


def _fingerprint(text: str) -> str:
    return f"stray/{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _stray_line(line: str) -> Quarantined:
    return Quarantined(_fingerprint(line), {"line": line}, "sacct printed a line that belongs to no job")


def _stray_step(row: Mapping[str, str]) -> Quarantined:
    name = f"{row['Cluster']}/{row[FIRST_COLUMN]}@{row['Start']}"
    return Quarantined(name, {"step": dict(row)}, "sacct printed a step that follows no row of its job")
