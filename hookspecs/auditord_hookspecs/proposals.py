"""Sections of a configuration that fit a host, for ``auditord init``.

A kind's ``detect`` gets a function that runs programs, so that a test plays them::

    def detect(run: RunProgram) -> Proposal | None:
        if run(["lpstat", "-v"]) is None:
            return None
        return Proposal("a print server", lambda answers: {"sites": [{"name": answers["site"]}]})
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

RunProgram: TypeAlias = Callable[[Sequence[str]], str | None]
"""Standard output of a program; None if it is not there, fails, or takes too long."""

Answers: TypeAlias = Mapping[str, str]
"""Answers by the names of questions; ``site`` (its name) and ``since`` (a day) are always there."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to whoever sets a host up.

    Args:
        name: of the answer, also in a file of answers: small letters, digits and _.
        text: what is asked.
        default: the answer that nobody needs to give.
    """

    name: str
    text: str
    default: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An instance that fits this host.

    Args:
        found: what was found, for the user: ``Slurm cluster hpc, with slurmdbd``.
        options: the instance's options for the answers, without ``kind``; raises ValueError for an answer that makes no
            sense.
        questions: of this kind, after those for every kind.
        comments: lines above options of the instance, by the option.
    """

    found: str
    options: Callable[[Answers], Mapping[str, Any]]
    questions: Sequence[Question] = ()
    comments: Mapping[str, str] = field(default_factory=dict[str, str])
