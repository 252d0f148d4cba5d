"""Collect jobs from the notes of ``auditord-epilog``: ask Slurm about each job, then remove its note."""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Final

from anyio import to_thread
from msgspec.structs import replace

from auditord_builtin.slurm.collecting import account_for, collect_again
from auditord_builtin.slurm.conversion import Converter
from auditord_builtin.slurm.conversion import convert as convert_job
from auditord_builtin.slurm.epilog.asking import ADVICE, Controller, Settled, Unclear, ask_sacct
from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig
from auditord_builtin.slurm.epilog.notes import JobNote, read_folder, remove
from auditord_builtin.slurm.runs import (
    Found,
    Run,
)
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    InvalidRecord,
    Produced,
    Quarantined,
    Record,
)
from auditord_hookspecs.wording import counted

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
    folder = await to_thread.run_sync(read_folder, config.spool, context.now())
    if folder.others:
        others = counted(folder.others, "file is", "files are")
        context.log.warning("%s: %s not from auditord-epilog and left in place", config.spool, others)
    known = await context.find_seen([note.name for note in folder.notes] + [file.name for file in folder.unreadable])
    await _remove(config, context, known)  # they were settled before the daemon was killed
    broken = [each for each in folder.unreadable if each.name not in known]
    if broken:
        reason = "{} is not a note of auditord-epilog: its name has no job id, or it has no date; check and discard it"
        yield Batch(
            quarantined=[
                Quarantined(f"note/{each.name}", {"note": each.name, "content": each.content}, reason.format(each.name))
                for each in broken
            ],
            seen=_remember(context, [each.name for each in broken]),
        )
        await _remove(config, context, [each.name for each in broken])
    converter = Converter(config)
    async for settled in _settle(config, context, [each for each in folder.notes if each.name not in known]):
        found = Found(settled.runs, quarantined=settled.quarantined)
        batch = await account_for(converter, found, context.now())
        yield replace(batch, seen=_remember(context, settled.names))
        await _remove(config, context, settled.names)


async def _remove(config: SlurmEpilogConfig, context: CollectorContext, names: Collection[str]) -> None:
    if names and not context.dry_run:
        await to_thread.run_sync(remove, config.spool, names)


def _remember(context: CollectorContext, names: Sequence[str]) -> Any:  # Any: as Batch has it
    return dict.fromkeys(names, context.now() + _REMEMBERED)


async def _settle(
    config: SlurmEpilogConfig, context: CollectorContext, notes: Sequence[JobNote]
) -> AsyncIterator[Settled]:
    """Ask about the notes in batches. Notes about jobs that are unknown or not over yet are left for the next run."""
    unclear = {} if config.scontrol_suffices else {note.name: "only sacct has its columns" for note in notes}
    controller = Controller(config, context)
    for start in range(0, len(notes) if config.scontrol_suffices else 0, _BY_SCONTROL):
        settled = Settled()
        for note in notes[start : start + _BY_SCONTROL]:
            answer = await controller.ask(note)
            if isinstance(answer, Unclear):
                unclear[note.name] = answer.reason
            elif isinstance(answer, Run):
                settled.add(note, answer)
        yield settled
    for_sacct = [note for note in notes if note.name in unclear]
    old_enough = [note for note in for_sacct if context.now() - note.noted >= config.lag]
    waiting = {note.name for note in for_sacct}
    for start in range(0, len(old_enough), _BY_SACCT):
        settled = await ask_sacct(config, context, old_enough[start : start + _BY_SACCT], unclear)
        waiting.difference_update(settled.names)
        yield settled
    for reason, count in Counter(unclear[name] for name in waiting).items():
        waiting_jobs = counted(count, "job waits", "jobs wait")
        if config.sacct:
            context.log.info("%s until sacct has complete data (%s)", waiting_jobs, reason)
        else:
            text = "%s: %s; the configuration has no sacct, so jobs go to quarantine %s after their end"
            context.log.warning(text, waiting_jobs, reason, config.patience)


def convert(config: SlurmEpilogConfig, raw: Any) -> Record | Produced | None:  # Any: JSON from the quarantine
    """Convert a quarantined job again with the current configuration; None if it makes no record.

    Raises:
        InvalidRecord: the job still cannot be converted.
    """
    if "note" in raw:
        raise InvalidRecord(f"it is only known that the job ended; {ADVICE}")
    return convert_job(config, raw)
