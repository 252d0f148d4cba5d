"""The errors that cross the border between the host and hook modules."""

from typing import ClassVar

from auditord_hookspecs.wording import counted


class AuditordError(Exception):
    """Root of every error that auditord raises on purpose; its text is written for the operator.

    Args:
        exit_status: of a command that it ends; a class of one's own may say another one than 1. 2 is wrong usage.

    Remedy:
        do what the text says; words of it find their chapter by `auditord manual WORD`.
    """

    exit_status: ClassVar[int] = 1


class InvalidRecord(AuditordError, ValueError):
    """A record breaks a rule of the wire contract; the text names the member and the rule.

    Remedy:
        mend the named member. Such a record is kept in quarantine, or in the body that was answered 400: `auditord
        quarantine show NUMBER`, then `retry`.
    """


class RecordsRejected(AuditordError):
    """A destination refuses records for good: sending them again unchanged would fail again.

    Args:
        reasons: why, per position in the batch that was sent; every other record of the batch was delivered.

    Remedy:
        `auditord quarantine list` has them with the reasons; mend the cause, then `auditord quarantine retry`.
    """

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(
            f"{counted(len(reasons), 'record')} refused: {next(iter(reasons.values()), 'no reason given')}"
        )
        self.reasons = reasons


class TooManyGroups(AuditordError):
    """An answer would have more groups than the question allows.

    Remedy:
        group by less, by longer periods, or ask for fewer records.
    """


class CommandFailed(AuditordError):
    """A child process could not start, ran out of time, printed too much or ended with a non-zero exit code.

    Args:
        text: which one, and what happened.
        exit_code: what it ended with by itself, negative the signal that ended it; None if it never started or was
            killed by us.
        timed_out: whether it was killed since it took too long.
        printed_too_much: whether it was killed since it printed too much.

    Remedy:
        run the command of the text as the service's user; the checkpoint stays, so nothing is left out once it works
        again.
    """

    def __init__(
        self, text: str, *, exit_code: int | None = None, timed_out: bool = False, printed_too_much: bool = False
    ) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.timed_out = timed_out
        self.printed_too_much = printed_too_much
