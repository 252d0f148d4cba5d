"""Collect jobs from the notes of ``auditord-epilog``: ask Slurm about each job, then remove its note.

Each note is a file in a folder; see ``script.py`` for the format.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
from anyio import to_thread
from msgspec.structs import replace

from auditord_builtin.slurm.collecting import account_for, collect_again
from auditord_builtin.slurm.config import CLUSTER
from auditord_builtin.slurm.conversion import convert as convert_job
from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig
from auditord_builtin.slurm.epilog.rows import SQUEUE_FORMAT, parse_job, parse_json, parse_squeue
from auditord_builtin.slurm.query import ENVIRONMENT, Query, naming_option, stream_query
from auditord_builtin.slurm.runs import (
    LAST_COLUMN,
    OVER,
    REQUEUED,
    RESIZING,
    Found,
    Run,
    group_runs,
    has_no_time,
    parse_state,
)
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    CommandFailed,
    InvalidRecord,
    Produced,
    Quarantined,
    Record,
    Window,
)
from auditord_hookspecs.folders import SharedFolder, UnsafePath
from auditord_hookspecs.mapping import Row, parse_instant
from auditord_hookspecs.wording import counted

SUFFIX: Final = ".job"

_NAME = re.compile(r"(?P<job_id>[1-9][0-9]{0,9})\.[0-9a-f]{16}\.job")
_END = b"\0\0"
_BEING_WRITTEN: Final = timedelta(seconds=10)
_LONGEST: Final = 2**20
"""The maximum size of a note in bytes. The environment of a process is smaller."""


class JobNote(msgspec.Struct, frozen=True):
    """A note that a run of a job has ended.

    Args:
        name: the file's name, which is unique.
        job_id: Slurm's raw id. Each task of an array has its own.
        noted: the time of the note, just after the end of the run.
        hints: the variables that Slurm set. They identify the job but never supply amounts.
    """

    name: str
    job_id: str
    noted: datetime
    hints: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])

    @property
    def question(self) -> str:
        """The id that selects only this job in a query to Slurm."""
        for first, second, between in (
            ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "_"),
            ("SLURM_HET_JOB_ID", "SLURM_HET_JOB_OFFSET", "+"),
        ):
            parts = self.hints.get(first, ""), self.hints.get(second, "")
            if all(part.isascii() and part.isdigit() for part in parts):
                return between.join(parts)
        return self.job_id


class Unreadable(msgspec.Struct, frozen=True):
    """A file that is not a valid note."""

    name: str
    content: str


class Folder(msgspec.Struct, frozen=True):
    """The folder's notes, oldest first, the invalid notes, and the number of ``others``, which are ignored."""

    notes: Sequence[JobNote]
    unreadable: Sequence[Unreadable]
    others: int


def read_folder(path: Path, now: datetime) -> Folder:
    """Read all notes, except those that may still be incomplete, which the next run reads.

    Raises:
        AuditordError: the folder does not exist, or it cannot be read.
    """
    try:
        with SharedFolder.opened(path) as folder:
            found = {name: _read_safely(folder, name, now) for name in folder.names() if name.endswith(SUFFIX)}
            others = sum(not name.endswith(SUFFIX) and folder.is_file(name) for name in folder.names())
    except OSError as error:
        raise AuditordError(
            f"{path}: {error.strerror}: the folder must exist, and this daemon must be able to read and write it "
            "(owner: Slurm's user, group: the daemon's, mode 2770)"
        ) from error
    notes = [each for each in found.values() if isinstance(each, JobNote)]
    unreadable = [each for each in found.values() if isinstance(each, Unreadable)]
    unsafe = sum(isinstance(each, UnsafePath) for each in found.values())
    return Folder(sorted(notes, key=lambda note: (note.noted, note.name)), unreadable, others + unsafe)


def _read_safely(folder: SharedFolder, name: str, now: datetime) -> JobNote | Unreadable | UnsafePath | None:
    try:
        return _read(folder, name, now)
    except UnsafePath as error:  # auditord-epilog creates neither links nor FIFOs
        return error
    except PermissionError as error:
        return UnsafePath(f"{folder.path / name}: {error.strerror}")
    except FileNotFoundError:
        return None


def _read(folder: SharedFolder, name: str, now: datetime) -> JobNote | Unreadable | None:
    with folder.open_file(name) as opened:
        content = opened.read(_LONGEST)
        changed = os.fstat(opened.fileno()).st_mtime
    match = _NAME.fullmatch(name)
    try:
        noted = datetime.fromtimestamp(changed, UTC)
    except (OverflowError, ValueError, OSError):  # a user has set a time that no calendar has
        match = None
        noted = now
    if match is None:
        return Unreadable(name, content.decode(errors="replace"))
    if not content.endswith(_END) and now - noted < _BEING_WRITTEN:
        return None
    # Leave out the last variable of a truncated file, since it may be truncated itself.
    pairs = (entry.decode(errors="replace").partition("=") for entry in content.split(b"\0")[:-1])
    return JobNote(name, match["job_id"], noted, {variable: value for variable, equals, value in pairs if equals})


def remove(path: Path, names: Iterable[str]) -> None:
    """Remove settled notes. Missing notes are ignored.

    Raises:
        AuditordError: the daemon has no permission to remove them. No job is lost, and the notes are remembered.
    """
    try:
        with SharedFolder.opened(path) as folder:
            for name in names:
                with suppress(FileNotFoundError):
                    folder.remove(name)
    except OSError as error:
        raise AuditordError(
            f"{path}: {error.filename}: {error.strerror}: cannot be removed: the daemon must have write access there"
        ) from error


class Unclear(msgspec.Struct, frozen=True):
    """slurmctld's answer about a run does not suffice, for a reason that is shown to the operator."""

    reason: str


Answer: TypeAlias = Run | Unclear | Literal["not over"]

_SKEW: Final = timedelta(seconds=5)
_NEAR: Final = timedelta(seconds=90)
"""A run that ended this close before the note is the noted one. A requeued job's next run takes longer than this."""
_REMEMBERED_BY_SLURMCTLD: Final = timedelta(minutes=10)
_DAY: Final = timedelta(days=1)


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
    """Ask the accounting database about the jobs. Notes about jobs that it does not know yet stay open.

    ``unclear`` maps the names of notes to the reasons why slurmctld's answers did not suffice.

    Raises:
        CommandFailed: sacct failed.
    """
    out_of_patience = context.now() - config.patience
    if not config.sacct:
        return _settled({}, notes, out_of_patience, unclear)
    period = Window(min(note.noted for note in notes) - _DAY, max(note.noted for note in notes) + _DAY)
    jobs = sorted({note.question for note in notes})
    runs = await _runs_within(config, context, period, jobs)
    # sacct does not print the rows of a resized job that ended before the period.
    resized = [start for of_job in runs.values() for run in of_job if (start := _start_of_resized(run)) is not None]
    if (begin := min(resized, default=period.start)) < period.start:
        runs = await _runs_within(config, context, Window(begin, period.stop), jobs)
    return _settled(runs, notes, out_of_patience, unclear)


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


def _start_of_resized(run: Run) -> datetime | None:
    """Return the start of the job if this is its row after a resizing, whose submission is the time of the resizing."""
    start, submitted = run.allocation["Start"], run.allocation["Submit"]
    if has_no_time(start) or has_no_time(submitted):
        return None
    try:
        began = parse_instant(start)
        return began if began < parse_instant(submitted) else None
    except InvalidRecord:  # the conversion reports it
        return None


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
            # After ``patience``, the database is not expected to learn more.
            settled.add(note, *late, *_earlier_rows(note, late, of_job))
            if not late:
                settled.quarantined[note.name] = unknown(note, unclear.get(note.name, FORGOTTEN))
    return settled


def _ended_within(run: Run, note: JobNote, period: timedelta) -> bool:
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
    start = run.allocation["Start"]
    try:
        return has_no_time(start) or parse_instant(start) <= note.noted
    except InvalidRecord:
        return True


def _earlier_rows(note: JobNote, near: Sequence[Run], of_job: Sequence[Run]) -> Sequence[Run]:
    """Return runs that may have no note of their own: those before a resizing or requeue, and those noted late."""
    starts = {run.allocation["Start"] for run in near}
    return [
        run
        for run in of_job
        if run not in near
        and (_ended_within(run, note, _DAY) or (run.state == RESIZING and run.allocation["Start"] in starts))
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
                timeout=self._config.scontrol_timeout,
                environment=ENVIRONMENT,
                through=self._config.through,
                max_output=_MAX_OUTPUT,
            )
        except CommandFailed as error:
            # In JSON, and if slurmctld knows only other tasks of the array, scontrol says so on its standard output.
            if _FORGOTTEN in error.stderr or (error.exit_code == 1 and not error.stderr):
                return Unclear(FORGOTTEN)
            raise naming_option(error, "scontrol") if error.timed_out else error from error
        printed = result.stdout.decode(errors="replace")
        if not printed.lstrip().startswith(form.begins):  # the program ignores the option
            raise CommandFailed(f"{self._config.scontrol[0]}: unrecognized option --json")
        job = form.parse(printed, note.job_id)
        return Unclear(form.unclear) if job is None else classify_answer(self._config, note, job)


_REMEMBERED: Final = timedelta(days=30)
"""The time for which settled notes are remembered, in case they could not be removed."""

_BY_SCONTROL: Final = 50
_BY_SACCT: Final = 500


async def collect(config: SlurmEpilogConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Collect the noted jobs or, if jobs or a window are given, collect those again with sacct.

    Raises:
        AuditordError: the folder is missing, or Slurm does not answer. The notes are kept.
    """
    if context.window is not None or context.job is not None:
        if not config.sacct:
            raise AuditordError("collecting a period or a job again needs sacct, but the configuration says sacct: []")
        async with aclosing(collect_again(config, context)) as batches:
            async for batch in batches:
                yield batch
        return
    notes, broken = await _look(config, context)
    if broken:
        reason = "{} is not a note of auditord-epilog: its name has no job id, or it has no date; check and discard it"
        yield Batch(
            quarantined=[
                Quarantined(f"note/{each.name}", {"note": each.name, "content": each.content}, reason.format(each.name))
                for each in broken
            ],
            seen=_seen(context, [each.name for each in broken]),
        )
        await _remove(config, context, [each.name for each in broken])
    async for settled in _settle(config, context, notes):
        found = Found(settled.runs, quarantined=settled.quarantined)
        batch = await account_for(config, found, context.now())
        yield replace(batch, seen=_seen(context, settled.names))
        await _remove(config, context, settled.names)


async def _look(config: SlurmEpilogConfig, context: CollectorContext) -> tuple[list[JobNote], list[Unreadable]]:
    """Return new valid and invalid notes. Remove those that were settled before the daemon was killed."""
    folder = await to_thread.run_sync(read_folder, config.spool, context.now())
    if folder.others:
        context.log.warning(
            "%s: %s not from auditord-epilog and left in place",
            config.spool,
            counted(folder.others, "file is", "files are"),
        )
    known = await context.seen([note.name for note in folder.notes] + [file.name for file in folder.unreadable])
    await _remove(config, context, known)
    return (
        [each for each in folder.notes if each.name not in known],
        [each for each in folder.unreadable if each.name not in known],
    )


async def _remove(config: SlurmEpilogConfig, context: CollectorContext, names: Collection[str]) -> None:
    if names and not context.dry_run:
        await to_thread.run_sync(remove, config.spool, names)


def _seen(context: CollectorContext, names: Sequence[str]) -> Any:  # Any: as Batch has it
    return dict.fromkeys(names, context.now() + _REMEMBERED)


async def _settle(
    config: SlurmEpilogConfig, context: CollectorContext, notes: Sequence[JobNote]
) -> AsyncIterator[Settled]:
    """Ask about the notes in batches. Notes about jobs that are unknown or not over yet are left for the next run."""
    unclear = {} if config.scontrol_suffices else {note.name: "only sacct has its columns" for note in notes}
    controller = Controller(config, context)
    for start in range(0, len(notes) if config.scontrol_suffices else 0, _BY_SCONTROL):
        yield await _settle_by_controller(controller, notes[start : start + _BY_SCONTROL], unclear)
    for_sacct = [note for note in notes if note.name in unclear]
    old_enough = [note for note in for_sacct if context.now() - note.noted >= config.lag]
    waiting = {note.name for note in for_sacct}
    for start in range(0, len(old_enough), _BY_SACCT):
        settled = await ask_sacct(config, context, old_enough[start : start + _BY_SACCT], unclear)
        waiting.difference_update(settled.names)
        yield settled
    _log_waiting(config, context, Counter(unclear[name] for name in waiting))


def _log_waiting(config: SlurmEpilogConfig, context: CollectorContext, waiting: Counter[str]) -> None:
    for reason, count in waiting.items():
        waiting_jobs = counted(count, "job waits", "jobs wait")
        if config.sacct:
            context.log.info("%s until sacct has complete data (%s)", waiting_jobs, reason)
        else:
            text = "%s: %s; the configuration has no sacct, so jobs go to quarantine %s after their end"
            context.log.warning(text, waiting_jobs, reason, config.patience)


async def _settle_by_controller(controller: Controller, notes: Sequence[JobNote], unclear: dict[str, str]) -> Settled:
    """Settle the notes for which slurmctld's answers suffice. Add the reasons why others need sacct to ``unclear``."""
    settled = Settled()
    for note in notes:
        answer = await controller.ask(note)
        if isinstance(answer, Unclear):
            unclear[note.name] = answer.reason
        elif isinstance(answer, Run):
            settled.add(note, answer)
    return settled


def convert(config: SlurmEpilogConfig, raw: Any) -> Record | Produced | None:  # Any: JSON from the quarantine
    """Convert a quarantined job again with the current configuration; None if it makes no record.

    Raises:
        InvalidRecord: the job still cannot be converted.
    """
    if "note" in raw:
        raise InvalidRecord(f"it is only known that the job ended; {ADVICE}")
    return convert_job(config, raw)
