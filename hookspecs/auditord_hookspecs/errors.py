"""The errors that the host and hook modules exchange."""

from typing import ClassVar

from auditord_hookspecs.wording import counted


class AuditordError(Exception):
    """Base class of all errors that auditord raises on purpose. Their texts are for the operator.

    Args:
        exit_status: the exit status of a command that fails with this error: 1, unless a subclass sets another one. 2
            means wrong usage.

    Remedy:
        do what the text says. `auditord manual WORD` finds the chapters that contain words of the text.
    """

    exit_status: ClassVar[int] = 1


class InvalidRecord(AuditordError, ValueError):
    """A record violates a rule of the wire contract. The text names the member and the rule.

    Remedy:
        correct the named member. Such a record is kept in quarantine, alone or in the body that was answered with 400:
        `auditord quarantine show NUMBER`, then `retry`.
    """


class RecordsRejected(AuditordError):
    """A destination refuses records permanently: sending them again unchanged would fail again.

    Args:
        reasons: the reasons, by position in the sent batch. All other records of the batch were delivered.

    Remedy:
        `auditord quarantine list` shows records and reasons. Remove the cause, then run `auditord quarantine retry`.
    """

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(
            f"{counted(len(reasons), 'record')} refused: {next(iter(reasons.values()), 'no reason given')}"
        )
        self.reasons = reasons


class TooManyGroups(AuditordError):
    """An answer would have more groups than the query allows.

    Remedy:
        group by fewer keys or longer periods, or select fewer records.
    """


class CommandFailed(AuditordError):
    """A child process could not start, ran out of time, printed too much or ended with a non-zero exit code.

    Args:
        text: the command and the failure.
        exit_code: the exit code, or the negative number of the signal that ended the process; None if it never started
            or auditord killed it.
        timed_out: whether auditord killed it because it took too long.
        printed_too_much: whether auditord killed it because it printed too much.
        stderr: the end of its standard error.

    Remedy:
        run the command in the text as the service's user. The checkpoint stays, so no job is lost once it works again.
    """

    def __init__(
        self,
        text: str,
        *,
        exit_code: int | None = None,
        timed_out: bool = False,
        printed_too_much: bool = False,
        stderr: str = "",
    ) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.timed_out = timed_out
        self.printed_too_much = printed_too_much
        self.stderr = stderr
