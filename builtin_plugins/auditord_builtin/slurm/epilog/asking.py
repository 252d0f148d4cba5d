"""Ask slurmctld and then the accounting database about the runs that notes are about."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Final, Literal, TypeAlias

import msgspec

from auditord_builtin.slurm.config import CLUSTER
from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig
from auditord_builtin.slurm.epilog.notes import JobNote
from auditord_builtin.slurm.epilog.rows import SQUEUE_FORMAT, parse_job, parse_json, parse_squeue
from auditord_builtin.slurm.query import ENVIRONMENT, Query, stream_query
from auditord_builtin.slurm.runs import (
    LAST_COLUMN,
    OVER,
    REQUEUED,
    RESIZING,
    Run,
    group_runs,
    parse_state,
)
from auditord_hookspecs import (
    CollectorContext,
    CommandFailed,
    InvalidRecord,
    Quarantined,
    Window,
)
from auditord_hookspecs.mapping import Row, parse_instant, parse_time


class Unclear(msgspec.Struct, frozen=True):
    """slurmctld's answer about a run does not suffice, for a reason that is shown to the operator."""

    reason: str


Answer: TypeAlias = Run | Unclear | Literal["not over"]

_SKEW: Final = timedelta(seconds=5)

_NEAR: Final = timedelta(seconds=90)
"""A run that ended this close before the note is the noted one. A requeued job's next run takes longer than this."""

_REMEMBERED_BY_SLURMCTLD: Final = timedelta(minutes=10)

_DAY: Final = timedelta(days=1)
_UNKNOWN: Final = timedelta.max


@dataclass
class Settled:
    """Names of settled notes, runs to account for by key, and jobs unknown to Slurm by the names of their notes."""

    names: list[str] = field(default_factory=list[str])
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    quarantined: dict[str, Quarantined] = field(default_factory=dict[str, Quarantined])

    def add(self, note: JobNote, *runs: Run) -> None:
        """Settle the note with these runs."""
        self.names.append(note.name)
        self.runs.update({run.key: run for run in runs})


def classify_answer(config: SlurmEpilogConfig, note: JobNote, job: Row) -> Answer:
    """Return the noted run if slurmctld's answer is about that run. The job may have been requeued since."""
    cluster = note.hints.get("SLURM_CLUSTER_NAME", "")
    if not cluster and (CLUSTER in config.record_prefix or "Cluster" in config.columns):
        return Unclear("auditord-epilog was called without SLURM_CLUSTER_NAME")
    if job[LAST_COLUMN] != note.job_id:
        return Unclear("slurmctld answered about another job")
    if job["State"] == "COMPLETING":
        return "not over"
    try:
        since_end = note.noted - parse_instant(job["End"])
    except InvalidRecord:
        since_end = _UNKNOWN
    is_this_run = note.hints.get("SLURM_JOB_RESTART_COUNT", job["Restarts"]) == job["Restarts"]
    ended_before = is_this_run and -_SKEW <= since_end <= _REMEMBERED_BY_SLURMCTLD
    if parse_state(job["State"]) not in OVER or not ended_before:
        return Unclear("slurmctld knows only a later run of the job, or not its end")
    if config.sacct and job["Restarts"] != "0":
        return Unclear("the job was requeued, so an earlier run may have another end now")
    return Run({**job, "Cluster": cluster}, ())


async def ask_sacct(
    config: SlurmEpilogConfig, context: CollectorContext, notes: Sequence[JobNote], unclear: Mapping[str, str]
) -> Settled:
    """Ask the accounting database about the jobs. Notes about jobs that it does not know yet stay open.

    ``unclear`` maps the names of notes to the reasons why slurmctld's answers did not suffice.

    Raises:
        CommandFailed: sacct failed.
    """
    out_of_patience = context.now() - config.patience
    if not config.sacct:
        return _settle_by_database({}, notes, out_of_patience, unclear)
    period = Window(min(note.noted for note in notes) - _DAY, max(note.noted for note in notes) + _DAY)
    jobs = sorted({note.question for note in notes})
    runs = await _runs_within(config, context, period, jobs)
    # sacct does not print the rows of a resized job that ended before the period. A row after a resizing has the start
    # of the job, and the time of the resizing as its submission.
    begin = period.start
    for run in chain.from_iterable(runs.values()):
        with suppress(InvalidRecord):  # the conversion reports it
            start, submitted = parse_time(run.allocation["Start"]), parse_time(run.allocation["Submit"])
            if start is not None and submitted is not None and start < submitted:
                begin = min(begin, start)
    if begin < period.start:
        runs = await _runs_within(config, context, Window(begin, period.stop), jobs)
    return _settle_by_database(runs, notes, out_of_patience, unclear)


async def _runs_within(
    config: SlurmEpilogConfig, context: CollectorContext, period: Window, jobs: Sequence[str]
) -> Mapping[str, Sequence[Run]]:
    """Return the jobs' runs that are over, by raw id, except those that ended before the period.

    Raises:
        CommandFailed: sacct failed.
    """
    query = Query(period, (), config.all_steps, jobs)
    async with aclosing(stream_query(config, context, query)) as tables:
        rows = [row async for table in tables for row in table.rows]
    runs: defaultdict[str, list[Run]] = defaultdict(list)
    for item in group_runs(rows):
        if isinstance(item, Run) and item.is_over:
            runs[item.allocation[LAST_COLUMN]].append(item)
    return runs


def _settle_by_database(
    runs: Mapping[str, Sequence[Run]], notes: Sequence[JobNote], out_of_patience: datetime, unclear: Mapping[str, str]
) -> Settled:
    settled = Settled()
    for note in notes:
        of_job = runs.get(note.job_id, ())
        near = [run for run in of_job if _ends_within(run, note, _NEAR)]
        if near and not any(_lacks_its_end(run, note) for run in of_job):
            settled.add(note, *near, *_earlier_rows(note, near, of_job))
        elif note.noted <= out_of_patience:
            late = [run for run in of_job if _lacks_its_end(run, note) or _ends_within(run, note, _DAY)]
            # After ``patience``, the database is not expected to learn more.
            settled.add(note, *late, *_earlier_rows(note, late, of_job))
            if not late:
                settled.quarantined[note.name] = unknown(note, unclear.get(note.name, FORGOTTEN))
    return settled


def _ends_within(run: Run, note: JobNote, period: timedelta) -> bool:
    """Return True if the run ended within ``period`` before the note, or has an unreadable end.

    The conversion reports unreadable ends. If the owner has requeued the run since, its end lies after the note.
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
    """Return True if the run may be the noted one but the database does not know its end yet."""
    return run.has_no_end and _began_before(run, note)


def _began_before(run: Run, note: JobNote) -> bool:
    """Return False only if the run is known to have started later; the conversion reports an unreadable start."""
    try:
        start = parse_time(run.allocation["Start"])
    except InvalidRecord:
        return True
    return start is None or start <= note.noted


def _earlier_rows(note: JobNote, near: Sequence[Run], of_job: Sequence[Run]) -> Sequence[Run]:
    """Return runs that may have no note of their own: those before a resizing or requeue, and those noted late."""
    starts = {run.allocation["Start"] for run in near}
    return [
        run
        for run in of_job
        if run not in near
        and (_ends_within(run, note, _DAY) or (run.state == RESIZING and run.allocation["Start"] in starts))
    ]


def unknown(note: JobNote, unclear: str) -> Quarantined:
    """Return a quarantine entry for a job that Slurm does not know."""
    raw = {"note": note.name, "noted": note.noted.isoformat(), "hints": dict(note.hints)}
    ended = f"job {note.job_id}, which ended at {note.noted:%Y-%m-%d %H:%M:%S} UTC"
    reason = f"neither scontrol nor sacct knows {ended}"
    if unclear != FORGOTTEN:
        reason = f"sacct does not know {ended}, and slurmctld does not suffice: {unclear}"
    return Quarantined(f"note/{note.name}", raw, f"{reason}; {ADVICE}")


FORGOTTEN: Final = "slurmctld has forgotten the job"

ADVICE: Final = "when sacct knows it, collect its day again (auditord collect … --from … --to …) and discard this entry"

_FORGOTTEN: Final = "Invalid job id"

_UNSUPPORTED: Final = ("unrecognized option", "invalid option", "Invalid job format", "no program", "serializer")

_MAX_OUTPUT: Final = 64 * 1024**2
_TIMEOUT: Final = timedelta(seconds=30)


class Form(msgspec.Struct, frozen=True):
    """One way to ask slurmctld.

    Args:
        argv: returns the command for a note.
        parse: parses the output for the job with a raw id. Returns None if the output does not suffice.
        unclear: the reason to report if ``parse`` returns None.
        begins: the text at the start of every output in this form.
    """

    argv: Callable[[JobNote], Sequence[str]]
    parse: Callable[[str, str], Mapping[str, str] | None]
    unclear: str
    begins: str = ""


def forms(config: SlurmEpilogConfig) -> list[Form]:
    """Return the ways to ask, safest first."""
    scontrol, squeue = config.scontrol, config.squeue
    command = [*squeue, "--noheader", "--states=all"]
    incomplete = "slurmctld lacks something that is needed, such as the owner, or the size before a resize"
    return [
        # By the raw id, since scontrol prints all tasks of an array in JSON even if asked for one.
        Form(lambda note: [*scontrol, "show", "job", note.job_id, "--json"], parse_json, incomplete, "{"),
        *(
            [Form(lambda note: [*command, f"--jobs={note.question}", SQUEUE_FORMAT], parse_squeue, incomplete)]
            if squeue
            else []
        ),
        Form(
            lambda note: [*scontrol, "show", "job", note.question, "--details", "--oneliner"],
            lambda printed, _: parse_job(printed),
            "scontrol prints fields twice or in another order (a user may have written them), or the job was resized",
        ),
    ]


class Controller:
    """Asks slurmctld about jobs. The first query finds the form that this version of Slurm supports."""

    def __init__(self, config: SlurmEpilogConfig, context: CollectorContext) -> None:
        self._config = config
        self._context = context
        self._forms = forms(config)

    async def ask(self, note: JobNote) -> Answer:
        """Ask slurmctld about the run of a note.

        Raises:
            CommandFailed: slurmctld does not answer.
        """
        while len(self._forms) > 1:
            try:
                return await self._ask(self._forms[0], note)
            except CommandFailed as error:
                if error.timed_out or not any(words in str(error) for words in _UNSUPPORTED):
                    raise
                self._forms.pop(0)
        return await self._ask(self._forms[0], note)

    async def _ask(self, form: Form, note: JobNote) -> Answer:
        try:
            result = await self._context.run_command(
                form.argv(note),
                timeout=_TIMEOUT,
                environment=ENVIRONMENT,
                through=self._config.through,
                max_output=_MAX_OUTPUT,
            )
        except CommandFailed as error:
            # In JSON, and if slurmctld knows only other tasks of the array, scontrol says so on its standard output.
            if _FORGOTTEN in error.stderr or (error.exit_code == 1 and not error.stderr):
                return Unclear(FORGOTTEN)
            raise
        printed = result.stdout.decode(errors="replace")
        if not printed.lstrip().startswith(form.begins):  # the program ignores the option
            raise CommandFailed(f"{self._config.scontrol[0]}: unrecognized option --json")
        job = form.parse(printed, note.job_id)
        return Unclear(form.unclear) if job is None else classify_answer(self._config, note, job)
