"""Answers of Slurm about noted jobs: scontrol while it remembers them, sacct later or where scontrol is not enough."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from auditord_builtin.slurm.config import CLUSTER
from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig
from auditord_builtin.slurm.epilog.notes import JobNote
from auditord_builtin.slurm.query import Query, stream_query
from auditord_builtin.slurm.runs import LAST_COLUMN, OVER, REQUEUED, RESIZING, Run, group_runs, has_no_time, parse_state
from auditord_hookspecs import CollectorContext, InvalidRecord, Quarantined, Window
from auditord_hookspecs.mapping import Row, parse_instant


@dataclass(frozen=True, slots=True)
class Unclear:
    """Slurmctld does not know all of a run; the reason is for the operator."""

    reason: str


Answer: TypeAlias = Run | Unclear | Literal["not over"]

_SKEW: Final = timedelta(seconds=5)
_NEAR: Final = timedelta(seconds=90)
"""Slurm calls the program right after a run's end; a requeued job's next run takes longer than this to end."""
_REMEMBERED_BY_SLURMCTLD: Final = timedelta(minutes=10)
_DAY: Final = timedelta(days=1)


@dataclass
class Settled:
    """The names of notes that are dealt with, runs to account for and jobs that Slurm does not know, both by key."""

    names: list[str] = field(default_factory=list[str])
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    quarantined: dict[str, Quarantined] = field(default_factory=dict[str, Quarantined])

    def add(self, note: JobNote, *runs: Run) -> None:
        """The note is dealt with by accounting for these runs."""
        self.names.append(note.name)
        self.runs.update({run.key: run for run in runs})


def classify_answer(config: SlurmEpilogConfig, note: JobNote, job: Row) -> Answer:
    """Believe slurmctld only if it speaks of this very run; the job may have been requeued since."""
    cluster = note.hints.get("SLURM_CLUSTER_NAME", "")
    if not cluster and (CLUSTER in config.record_prefix or "Cluster" in config.columns):
        return Unclear("auditord-epilog was called without SLURM_CLUSTER_NAME")
    if job[LAST_COLUMN] != note.job_id:
        return Unclear("slurmctld answered about another job")
    if job["State"] == "COMPLETING":
        return "not over"
    if parse_state(job["State"]) not in OVER or not _ended_before(note, job):
        return Unclear("slurmctld knows only a later run of the job, or not its end")
    if config.sacct and job["Restarts"] != "0":
        return Unclear("the job was requeued, so an earlier run may have another end now")
    return Run({**job, "Cluster": cluster}, ())


def _ended_before(note: JobNote, job: Row) -> bool:
    restarts = note.hints.get("SLURM_JOB_RESTART_COUNT", job["Restarts"])
    try:
        end = parse_instant(job["End"])
    except InvalidRecord:
        return False
    return restarts == job["Restarts"] and -_SKEW <= note.noted - end <= _REMEMBERED_BY_SLURMCTLD


async def ask_sacct(
    config: SlurmEpilogConfig, context: CollectorContext, notes: Sequence[JobNote], unclear: Mapping[str, str]
) -> Settled:
    """Ask the accounting database about the jobs; notes about which it knows nothing yet are not settled.

    ``unclear`` says why slurmctld was not enough, by the notes' names.

    Raises:
        CommandFailed: it does not answer.
    """
    out_of_patience = context.now() - config.patience
    if not config.sacct:
        return _settled({}, notes, out_of_patience, unclear)
    period = Window(min(note.noted for note in notes) - _DAY, max(note.noted for note in notes) + _DAY)
    jobs = sorted({note.question for note in notes})
    query = Query(period, (), config.all_steps, jobs)
    async with aclosing(stream_query(config, context, query)) as tables:
        rows = [row async for table in tables for row in table.rows]
    runs: defaultdict[str, list[Run]] = defaultdict(list)
    for item in group_runs(rows):
        if isinstance(item, Run) and item.is_over:
            runs[item.allocation[LAST_COLUMN]].append(item)
    return _settled(runs, notes, out_of_patience, unclear)


def _settled(
    runs: Mapping[str, Sequence[Run]], notes: Sequence[JobNote], out_of_patience: datetime, unclear: Mapping[str, str]
) -> Settled:
    settled = Settled()
    for note in notes:
        of_job = runs.get(note.job_id, ())
        near = [run for run in of_job if _ended_within(run, note, _NEAR)]
        if near and not any(_lacks_its_end(run, note) for run in of_job):
            settled.add(note, *near, *_earlier_rows(note, near, of_job))
        elif note.noted <= out_of_patience:
            late = [run for run in of_job if _lacks_its_end(run, note) or _ended_within(run, note, _DAY)]
            settled.add(note, *late)  # the database has had its time: this is all that there is
            if not late:
                settled.quarantined[note.name] = unknown(note, unclear.get(note.name, FORGOTTEN))
    return settled


def _ended_within(run: Run, note: JobNote, period: timedelta) -> bool:
    """True if the note may be about the run; also if its end is unreadable: its conversion says so.

    The end of a run whose owner has requeued it since is later than the note.
    """
    try:
        end = run.end
    except InvalidRecord:
        return True
    if end is None:
        return False
    if run.state == REQUEUED and end > note.noted:
        return _began_before(run, note)
    return -_SKEW <= note.noted - end <= period


def _lacks_its_end(run: Run, note: JobNote) -> bool:
    """True if the run may be the noted one, and the database knows no end of it (yet)."""
    return run.has_no_end and _began_before(run, note)


def _began_before(run: Run, note: JobNote) -> bool:
    start = run.allocation["Start"]
    return has_no_time(start) or parse_instant(start) <= note.noted


def _earlier_rows(note: JobNote, near: Sequence[Run], of_job: Sequence[Run]) -> Sequence[Run]:
    """Rows without a note of their own: those before a resizing, and runs that ended otherwise until a requeue."""
    starts = {run.allocation["Start"] for run in near}
    return [
        run
        for run in of_job
        if run not in near
        and (
            (run.state == RESIZING and run.allocation["Start"] in starts)
            or (run.state == REQUEUED and _ended_within(run, note, _DAY))
        )
    ]


def unknown(note: JobNote, unclear: str) -> Quarantined:
    """A job that Slurm does not know; there is nothing to make a record of but its id."""
    raw = {"note": note.name, "noted": note.noted.isoformat(), "hints": dict(note.hints)}
    ended = f"job {note.job_id}, which ended at {note.noted:%Y-%m-%d %H:%M:%S} UTC"
    reason = f"neither scontrol nor sacct knows {ended}"
    if unclear != FORGOTTEN:
        reason = f"sacct does not know {ended}, and slurmctld is not enough: {unclear}"
    return Quarantined(f"note/{note.name}", raw, f"{reason}; {ADVICE}")


FORGOTTEN: Final = "slurmctld has forgotten the job"

ADVICE: Final = "when sacct knows it, collect its day again (auditord collect … --from … --to …) and discard this entry"
