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

from auditord_hookspecs.errors import AuditordError

Answers: TypeAlias = Mapping[str, str]
"""Answers by the names of their questions. ``site`` (the site's name) and ``since`` (a day) are always included."""


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
        name: the name of the answer, also in a file of answers: lower-case letters, digits and _.
        text: the question.
        default: the answer if none is given.
        check: raises ValueError for a wrong answer, so that the question is asked again.
    """

    name: str
    text: str
    default: str = ""
    check: Callable[[str], object] | None = None


class NewSecret(msgspec.Struct, frozen=True):
    """The value of an option for a secret: ``auditord init`` writes a random one to a file.

    Args:
        name: the file's name, in the folder of the configuration file. An existing file does not change.
    """

    name: str


class Proposal(msgspec.Struct, frozen=True):
    """A source that was found on a host, and the section of a configuration for it.

    Args:
        found: a text for the user, such as ``Slurm cluster hpc, with slurmdbd``; also a comment above the section.
        options: returns the instance's options, without ``kind``, for the answers. Raises ValueError for a wrong
            answer. A value may be a :class:`NewSecret`. None if the section can only be converted from ``imports``.
        questions: the questions of this kind, asked after those for all kinds.
        comments: comments above options of the instance, by option.
        gateway: True if its jobs run in a batch system behind it, so that both sources together would count them twice.
            It is left out if another source was found, unless the user chooses it.
        imports: configuration files of a program that this kind replaces, for ``auditord config import``.
        labels: returns the section ``labels`` of the host for the answers: which label of this kind's records names the
            user, the group or the site. Raises ValueError for a wrong answer.
    """

    found: str
    options: Callable[[Answers], Mapping[str, Any]] | None = None
    questions: Sequence[Question] = ()
    comments: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    gateway: bool = False
    imports: Sequence[Path] = ()
    labels: Callable[[Answers], Mapping[str, str]] | None = None


class NoAnswer(AuditordError):
    """A source is installed on the host, but does not answer.

    Remedy:
        start it, and run auditord init again.
    """


Detect: TypeAlias = Callable[[Host], Proposal | None]
"""A function that looks for a source, or for a program that a kind replaces. Returns None if there is none, and raises
:class:`NoAnswer` if it is installed but does not answer."""
