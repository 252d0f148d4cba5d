"""Questions to slurmctld about noted jobs, in the safest form that this Slurm has.

1. ``scontrol show job --json`` (Slurm 23.02 and newer), 2. ``squeue --Format`` with fields that hold no free text,
3. ``scontrol show job --oneliner``, which names and comments of users can make ambiguous.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig
from auditord_builtin.slurm.epilog.job_lookup import FORGOTTEN, Answer, Unclear, classify_answer
from auditord_builtin.slurm.epilog.notes import JobNote
from auditord_builtin.slurm.epilog.rows import SQUEUE_FORMAT, parse_json, parse_squeue
from auditord_builtin.slurm.epilog.scontrol import parse_job
from auditord_builtin.slurm.query import ENVIRONMENT, naming_option
from auditord_hookspecs import CollectorContext, CommandFailed

_FORGOTTEN: Final = "Invalid job id"
_NOT_THERE: Final = ("unrecognized option", "invalid option", "Invalid job format", "no program", "serializer")
_MAX_OUTPUT: Final = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Form:
    """One way to ask.

    Args:
        argv: the command.
        parse: reads what it prints about the job with a raw id; None if that is not surely there.
        unclear: what it means that it is not.
        begins: the text that every answer in this form begins with.
    """

    argv: Callable[[JobNote], Sequence[str]]
    parse: Callable[[str, str], Mapping[str, str] | None]
    unclear: str
    begins: str = ""


def forms(config: SlurmEpilogConfig) -> list[Form]:
    """The ways to ask, the safest first."""
    scontrol, squeue = config.scontrol, config.squeue
    asked = [*squeue, "--noheader", "--states=all"]
    not_there = "slurmctld does not know all that is needed, such as the owner, or the size before a resizing"
    return [
        Form(lambda note: [*scontrol, "show", "job", note.question, "--json"], parse_json, not_there, "{"),
        *(
            [Form(lambda note: [*asked, f"--jobs={note.question}", SQUEUE_FORMAT], parse_squeue, not_there)]
            if squeue
            else []
        ),
        Form(
            lambda note: [*scontrol, "show", "job", note.question, "--details", "--oneliner"],
            lambda printed, _: parse_job(printed),
            "scontrol prints text in which fields stand twice or in another order: a user may have written them",
        ),
    ]


class Controller:
    """Asks slurmctld; the form that this Slurm has is found by the first question of a run."""

    def __init__(self, config: SlurmEpilogConfig, context: CollectorContext) -> None:
        self._config = config
        self._context = context
        self._forms = forms(config)

    async def ask(self, note: JobNote) -> Answer:
        """The run that the note is about, as slurmctld remembers it.

        Raises:
            CommandFailed: slurmctld does not answer.
        """
        while len(self._forms) > 1:
            try:
                return await self._ask(self._forms[0], note)
            except CommandFailed as error:
                if error.timed_out or not any(words in str(error) for words in _NOT_THERE):
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
            if _FORGOTTEN in str(error):
                return Unclear(FORGOTTEN)
            raise naming_option(error, "scontrol") if error.timed_out else error from error
        printed = result.stdout.decode(errors="replace")
        if not printed.lstrip().startswith(form.begins):  # a program that does not look at the option
            raise CommandFailed(f"{self._config.scontrol[0]}: unrecognized option --json")
        job = form.parse(printed, note.job_id)
        return Unclear(form.unclear) if job is None else classify_answer(self._config, note, job)
