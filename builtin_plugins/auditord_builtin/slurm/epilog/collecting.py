"""The collector's run: from notes to batches; a note is removed when its batch is durable."""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from anyio import to_thread

from auditord_builtin.slurm.collecting import account_for, collect_again
from auditord_builtin.slurm.conversion import convert as convert_job
from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig
from auditord_builtin.slurm.epilog.controller import Controller
from auditord_builtin.slurm.epilog.job_lookup import ADVICE, Settled, Unclear, ask_sacct
from auditord_builtin.slurm.epilog.notes import JobNote, Unreadable, read_folder, remove
from auditord_builtin.slurm.runs import Found, Run
from auditord_hookspecs import AuditordError, Batch, CollectorContext, InvalidRecord, Produced, Quarantined, Record
from auditord_hookspecs.wording import counted

_REMEMBERED: Final = timedelta(days=30)
"""For how long a note is known that could not be removed."""

_BY_SCONTROL: Final = 50
_BY_SACCT: Final = 500


async def collect(config: SlurmEpilogConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Account for the jobs that are noted; or, where a period is collected again, for all that sacct knows of it.

    Raises:
        AuditordError: the folder is missing, or Slurm does not answer; the notes stay where they are.
    """
    if context.window is not None or context.job is not None:
        if not config.sacct:
            raise AuditordError(
                "a period or a job can only be collected again by sacct, and the configuration says sacct: []"
            )
        async with aclosing(collect_again(config, context)) as batches:
            async for batch in batches:
                yield batch
        return
    notes, broken = await _look(config, context)
    if broken:
        reason = "{} is no note of auditord-epilog: its name holds no job id; look at it and discard it"
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
        batch = await account_for(config, context, found, context.now())
        yield replace(batch, seen=_seen(context, settled.names))
        await _remove(config, context, settled.names)


async def _look(config: SlurmEpilogConfig, context: CollectorContext) -> tuple[list[JobNote], list[Unreadable]]:
    """The files of the folder that are not known; a known one was not removed because the daemon was killed."""
    folder = await to_thread.run_sync(read_folder, config.spool, context.now())
    if folder.others:
        context.log.warning(
            "%s: %s no notes of auditord-epilog: left there",
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
    """Ask about all notes, some at a time; what is not over, or not known yet, stays for the next run."""
    unclear = {} if config.scontrol_suffices else {note.name: "its columns are sacct's" for note in notes}
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
            context.log.info("%s until sacct knows all of it (%s)", waiting_jobs, reason)
        else:
            text = "%s: %s; there is no sacct to ask, and jobs are quarantined %s after their ends"
            context.log.warning(text, waiting_jobs, reason, config.patience)


async def _settle_by_controller(controller: Controller, notes: Sequence[JobNote], unclear: dict[str, str]) -> Settled:
    """Settle what slurmctld knows all of; of the others the reason is noted."""
    settled = Settled()
    for note in notes:
        answer = await controller.ask(note)
        if isinstance(answer, Unclear):
            unclear[note.name] = answer.reason
        elif isinstance(answer, Run):
            settled.add(note, answer)
    return settled


def convert(config: SlurmEpilogConfig, raw: Any) -> Record | Produced | None:  # Any: JSON from the quarantine
    """Try a quarantined job again under today's configuration; None if it makes no record now.

    Raises:
        InvalidRecord: what is still wrong.
    """
    if "note" in raw:
        raise InvalidRecord(f"all that is known is that the job ended; {ADVICE}")
    return convert_job(config, raw)
