"""``auditord init``: a first configuration, made of what is found on this host and of a few answers."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from auditord.cli.frame import config_paths
from auditord.cli.installation import utc_now
from auditord.config.documents import Path as OptionPath
from auditord.config.loading import DEFAULT_FILE, load_text
from auditord.config.printing import Remarks, to_yaml
from auditord.config.yaml_files import read_file
from auditord.errors import ConfigurationError
from auditord.hooks import Hooks, load_hooks
from auditord_hookspecs.proposals import Answers, Proposal, Question
from auditord_hookspecs.terminal import say

_FRAGMENTS: Final = DEFAULT_FILE.parent / "conf.d"
_PATIENCE: Final = 20.0
_HEAD: Final = """\
# Made by auditord init. Every option: auditord manual options. After a change: auditord config check.
# Records are kept in an SQLite file in state_dir and served on 127.0.0.1:8000.
"""


@click.command("init")
@click.option("--yes", is_flag=True, help="Ask nothing: take the default of every answer that --answers does not give.")
@click.option(
    "--answers",
    "answers_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Take answers from a YAML file: the names of questions, each with its answer.",
)
def init_command(*, yes: bool, answers_file: Path | None) -> None:
    """Write a first configuration that fits this host: the file of --config, or /etc/auditord/auditord.yml.

    Looks for batch systems, asks a few questions, checks what it made and says what to do next. A file that is there is
    never changed.
    """
    paths = config_paths()
    file = paths[-1] if paths else DEFAULT_FILE
    if file.exists():
        other = _FRAGMENTS / "site.yml"
        raise ConfigurationError(
            f"{file} is there already, and init changes no file: write another one with --config, such as {other}, "
            f"which is merged into {DEFAULT_FILE}"
        )
    hooks = load_hooks([])
    proposals = dict(_proposals(hooks))
    for proposal in proposals.values():
        say(f"found: {proposal.found}")
    if not proposals:
        say("found no batch system that an installed hook module knows: the configuration serves the API alone")
    answers = _answers(_questions(proposals, utc_now()), _given(answers_file), ask=not yes)
    text = configuration_text(proposals, answers)
    load_text(text, str(file), hooks.kinds, {"HOME": "/"})
    _write(file, text)
    _say_next(file, proposals, answers)


def _proposals(hooks: Hooks) -> Iterator[tuple[str, Proposal]]:
    """The proposals of the kinds of collectors, by the kind."""
    for name, kind in hooks.kinds.collectors.items():
        if kind.detect is not None and (proposal := kind.detect(run_program)) is not None:
            yield name, proposal


def run_program(argv: Sequence[str]) -> str | None:
    """Standard output of a program; None if it is not there, fails, or takes too long."""
    try:
        done = subprocess.run(  # noqa: S603 a kind's own words
            argv, capture_output=True, text=True, check=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout


def _questions(proposals: Mapping[str, Proposal], now: datetime) -> Sequence[Question]:
    """All questions; those of several kinds with one name are asked once."""
    asked = [
        Question("site", "Name of the site", socket.gethostname().partition(".")[0]),
        Question("since", "Account for jobs that ended from this day on (UTC)", f"{now:%Y-%m}-01"),
        *(question for proposal in proposals.values() for question in proposal.questions),
    ]
    return list({question.name: question for question in reversed(asked)}.values())[::-1]


def _given(file: Path | None) -> Answers:
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


def _answers(questions: Sequence[Question], given: Answers, *, ask: bool) -> Answers:
    names = {question.name for question in questions}
    if unknown := sorted(given.keys() - names):
        raise ConfigurationError(f"nobody asks '{unknown[0]}' here; answers are {', '.join(sorted(names))}")
    missing = [question for question in questions if question.name not in given]
    if missing and ask and not sys.stdin.isatty():
        raise ConfigurationError("there is no terminal to ask at: say --yes, or give all answers with --answers FILE")
    asked = {each.name: click.prompt(each.text, default=each.default) if ask else each.default for each in missing}
    return {**given, **asked}


def configuration_text(proposals: Mapping[str, Proposal], answers: Answers) -> str:
    """The configuration as YAML with comments.

    Raises:
        ConfigurationError: an answer makes no sense.
    """
    try:
        collectors = {name: {"kind": name, **proposal.options(answers)} for name, proposal in proposals.items()}
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    above: dict[OptionPath, str] = {
        ("collectors", name, option): text
        for name, proposal in proposals.items()
        for option, text in proposal.comments.items()
    }
    above.update({("collectors", name): proposal.found for name, proposal in proposals.items()})
    return _HEAD + (to_yaml({"collectors": collectors}, Remarks(above=above)) if collectors else "")


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x") as opened:
            opened.write(text)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error


def _say_next(file: Path, proposals: Mapping[str, Proposal], answers: Answers) -> None:
    option = "" if file == DEFAULT_FILE or file.parent == _FRAGMENTS else f" --config {file}"
    say(f"wrote {file}; it is checked. Next:")
    say(f"  auditord doctor{option}")
    for name in proposals:
        say(f"  auditord collect {name} --dry-run --from {answers['since']}{option} | head")
    say(f"  auditord run{option}")
