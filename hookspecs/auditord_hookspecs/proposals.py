"""Proposals of configuration sections for a host, for ``auditord init``.

A kind's ``detect`` inspects the host through an object, so that tests can replace it::

    def detect(host: Host) -> Proposal | None:
        if host.run(["lpstat", "-v"]) is None:
            return None
        return Proposal("a print server", lambda answers: {"sites": [{"name": answers["site"]}]})
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

Answers: TypeAlias = Mapping[str, str]
"""Answers by the names of questions; ``site`` (its name) and ``since`` (a day) are always there."""


class Host(Protocol):
    """The machine that ``auditord init`` configures."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment variables."""
        ...

    def run(self, argv: Sequence[str]) -> str | None:
        """Return the standard output of a program; None if it is missing, fails, or takes too long."""
        ...

    def find(self, *patterns: str) -> Sequence[Path]:
        """Return the existing files for absolute patterns such as ``/etc/apel/*.cfg``, in the order of the patterns."""
        ...


class Question(msgspec.Struct, frozen=True):
    """A question of ``auditord init``.

    Args:
        name: the answer's name, also in a file of answers: lower-case letters, digits and _.
        text: the question.
        default: the answer if none is given.
    """

    name: str
    text: str
    default: str = ""


class NewSecret(msgspec.Struct, frozen=True):
    """The value of an option that is a secret: ``auditord init`` writes a random one into a file.

    Args:
        name: the file's name, beside the configuration's; an existing file does not change.
    """

    name: str


class Proposal(msgspec.Struct, frozen=True):
    """A source that was found on a host, and the section of a configuration for it.

    Args:
        found: a text for the user, such as ``Slurm cluster hpc, with slurmdbd``; it stands above the section as well.
        options: a function from the answers to the instance's options, without ``kind``; raises ValueError for a wrong
            answer. A value may be a :class:`NewSecret`. None if no section can be made: ``imports`` says from which
                files.
        questions: of this kind, after those for every kind.
        comments: lines above options of the instance, by the option.
        gateway: its jobs run in a batch system behind it, so both would count them twice. It is left out if another
            source
            was found, unless the user chooses it.
        imports: configuration files of a program that this kind replaces, for ``auditord config import``.
    """

    found: str
    options: Callable[[Answers], Mapping[str, Any]] | None = None
    questions: Sequence[Question] = ()
    comments: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    gateway: bool = False
    imports: Sequence[Path] = ()


Detect: TypeAlias = Callable[[Host], Proposal | None]
"""Look for a source, or for a program that a kind replaces; None if it is not there."""
