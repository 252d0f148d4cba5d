"""The lines of a diagnosis."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

NAMED: Final = 5
"""The number of names in a line."""


class Verdict(Enum):
    """The weight of a finding."""

    OK = "ok"
    NOTE = "note"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line.

    Args:
        verdict: how it stands.
        subject: what was looked at.
        text: what was found, and what to do.
    """

    verdict: Verdict
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.verdict.value:4}  {self.subject:10}  {self.text}"


def ok(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding(Verdict.OK, subject, text)


def note(subject: str, text: str) -> Finding:
    """Amounts may lack something, or it is a matter of taste."""
    return Finding(Verdict.NOTE, subject, text)


def fail(subject: str, text: str) -> Finding:
    """Amounts will not be right, or not arrive."""
    return Finding(Verdict.FAIL, subject, text)


def listed(names: Iterable[str]) -> str:
    """Some names, and how many more there are."""
    found = list(names)
    more = [f"and {len(found) - NAMED} more"] if len(found) > NAMED else []
    return ", ".join([*found[:NAMED], *more]) or "none"
