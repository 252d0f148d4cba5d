"""The lines of a diagnosis."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final

from auditord_hookspecs import wording

NAMED: Final = 5
"""The number of names in a line."""


class Weight(Enum):
    """The weight of a finding: NOTE, amounts may lack something; FAIL, they will not be right, or not arrive."""

    OK = "ok"
    NOTE = "note"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: its weight, the part that was looked at, what was found and what to do."""

    verdict: Weight
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.verdict.value:4}  {self.subject:10}  {self.text}"


ok = partial(Finding, Weight.OK)
note = partial(Finding, Weight.NOTE)
fail = partial(Finding, Weight.FAIL)


def listed(names: Iterable[str]) -> str:
    """Some names, and the number of the others."""
    return wording.listed(list(names), NAMED) or "none"
