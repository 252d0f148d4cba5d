"""The questions of ``auditord init``, and their answers: of a file, of the person at the terminal, or the defaults."""

import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from auditord.cli.init_host import Postgresql
from auditord.config.yaml_files import read_file
from auditord.errors import ConfigurationError
from auditord_hookspecs.proposals import Answers, Proposal, Question

AUDITOR: Final = "auditor"
"""The name of the answer with its URL, and of the file that its configuration becomes."""


@dataclass(frozen=True, slots=True)
class Found:
    """All that was found on a host.

    Args:
        collectors: proposals of instances, by the kind.
        imports: what kinds, and AUDITOR, have left to import, by the name of the file that would be made of it.
        postgresql: a server for the record store.
        transforms: proposals of changes that records meet before they are kept, by the kind.
    """

    collectors: Mapping[str, Proposal]
    imports: Mapping[str, Proposal]
    postgresql: Postgresql | None = None
    transforms: Mapping[str, Proposal] = field(default_factory=dict[str, Proposal])

    def lines(self) -> Iterator[str]:
        """Descriptions of all that was found."""
        for proposal in (*self.collectors.values(), *self.imports.values()):
            yield proposal.found
        if self.postgresql is not None:
            yield self.postgresql.found


def given_answers(file: Path | None) -> Answers:
    """The answers in a file.

    Raises:
        ConfigurationError: it cannot be read.
    """
    if file is None:
        return {}
    return {name: _text(value) for name, value in read_file(file).values.items()}


def _text(value: Any) -> str:  # Any: what YAML holds
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def answers_to(found: Found, now: datetime, given: Answers, *, ask: bool) -> Answers:
    """The answers to all questions that matter here: first those for every host, then those of the chosen collectors.

    Raises:
        ConfigurationError: an answer is given that nobody asks for, makes no sense, or there is nobody to ask.
    """
    general = list(_general_questions(found, now, given))
    names = {question.name for question in (*general, *_questions_of(found.collectors.values()))}
    if unknown := sorted(given.keys() - names):
        raise ConfigurationError(f"nobody asks '{unknown[0]}' here; answers are {', '.join(sorted(names))}")
    answers = dict(_answered(general, given, ask=ask))
    asked = _questions_of(chosen_collectors(found, answers).values())
    return {**given, **answers, **dict(_answered(asked, given, ask=ask))}


def chosen_collectors(found: Found, answers: Answers) -> Mapping[str, Proposal]:
    """The collectors that are to be set up; the answer ``collectors`` is asked for where there are several.

    Raises:
        ConfigurationError: the answer names another one.
    """
    if len(found.collectors) < 2:  # noqa: PLR2004 nothing to choose from
        return found.collectors
    names = [name for part in answers["collectors"].split(",") if (name := part.strip())]
    if unknown := [name for name in names if name not in found.collectors]:
        raise ConfigurationError(f"collectors: '{unknown[0]}' was not found here, but {', '.join(found.collectors)}")
    return {name: found.collectors[name] for name in names}


def _general_questions(found: Found, now: datetime, given: Answers) -> Iterator[Question]:
    yield Question("site", "Name of the site", socket.gethostname().partition(".")[0])
    yield Question("since", "Account for jobs that ended from this day on (UTC)", f"{now:%Y-%m}-01")
    if len(found.collectors) > 1:
        default = [name for name, proposal in found.collectors.items() if not proposal.gateway]
        text = "Collectors, separated by commas; a job that two of them see would count twice"
        yield Question("collectors", text, ",".join(default or found.collectors))
    if AUDITOR in found.imports or AUDITOR in given:
        yield Question(AUDITOR, "URL of the AUDITOR whose records are to be taken over (nothing: none)")
    if found.postgresql is not None:
        yield found.postgresql.question
    yield from _questions_of(found.transforms.values())


def _questions_of(proposals: Iterable[Proposal]) -> Sequence[Question]:
    """The questions of proposals; those of one name are asked once."""
    return list({question.name: question for proposal in proposals for question in proposal.questions}.values())


def _answered(questions: Sequence[Question], given: Answers, *, ask: bool) -> Iterator[tuple[str, str]]:
    missing = [question for question in questions if question.name not in given]
    if missing and ask and not sys.stdin.isatty():
        raise ConfigurationError("there is no terminal to ask at: say --yes, or give all answers with --answers FILE")
    yield from ((each.name, given[each.name]) for each in questions if each.name in given)
    for each in missing:
        yield (
            each.name,
            click.prompt(each.text, default=each.default, show_default=bool(each.default)) if ask else each.default,
        )
