"""The lines of a diagnosis."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from auditord_hookspecs import wording
from auditord_hookspecs.checks import Finding, Severity

NAMED: Final = 5
"""The number of names in a line."""


_WORDS: Final[Mapping[Severity, str]] = {Severity.OK: "ok", Severity.WARNING: "note", Severity.FAILURE: "FAIL"}

ok = partial(Finding, Severity.OK)
note = partial(Finding, Severity.WARNING)
"""Amounts may lack something."""
fail = partial(Finding, Severity.FAILURE)
"""Amounts will not be right, or not arrive."""


def as_line(finding: Finding) -> str:
    """A finding for people: its weight, the part that was looked at, and what was found."""
    return f"{_WORDS[finding.severity]:4}  {finding.subject:10}  {finding.text}"


def listed(names: Iterable[str]) -> str:
    """Some names, and the number of the others."""
    return wording.listed(list(names), NAMED) or "none"
