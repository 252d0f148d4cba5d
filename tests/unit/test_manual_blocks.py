"""The blocks of code in the documents: configurations load, commands have their options, shell and Python parse.

A YAML block that adds to the first one of its page says behind ``yaml`` where: ``yaml plugins.apel``.
"""

import ast
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import click
import pytest
from markdown_it.token import Token
from pydantic import SecretStr

from auditord.cli import auditord
from auditord.config.loading import load_with_sources
from auditord.hooks import load_hooks
from auditord.manual.html import markdown_reader

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "auditord/manual").glob("*.md"))]
KINDS = load_hooks([]).kinds
CONTEXT = click.Context(auditord, info_name="auditord")


@cache
def tokens(path: Path) -> list[Token]:
    return markdown_reader().parse(path.read_text())


def blocks(*languages: str) -> list[tuple[str, str, str]]:
    """Document and line, what stands behind the language, and the block."""
    fences = [(path, token) for path in DOCUMENTS for token in tokens(path) if token.type == "fence"]
    return [
        (f"{path.stem}:{token.map[0] + 1 if token.map else 0}", token.info.partition(" ")[2], token.content)
        for path, token in fences
        if token.info.split(" ")[0] in languages
    ]


def shell_lines() -> Iterator[tuple[str, str]]:
    """Every line that is typed: of scripts, and behind the prompts of sessions."""
    for place, _, text in blocks("sh"):
        script = re.sub(r"<<'?(\w+)'?\n.*?\n\1$", "", text.replace("\\\n", " "), flags=re.DOTALL | re.MULTILINE)
        yield from ((place, line) for line in script.splitlines())
    for place, _, text in blocks("console"):
        yield from ((place, line[2:]) for line in text.splitlines() if line.startswith(("# ", "$ ")))


def spans() -> Iterator[tuple[str, str]]:
    """Code within text that begins with our program's name."""
    for path in DOCUMENTS:
        for token in tokens(path):
            for span in token.children or ():
                if span.type == "code_inline" and re.match(r"auditord [a-z]", span.content):
                    yield path.stem, span.content


def calls(line: str) -> Iterator[Sequence[str]]:
    """Our program's arguments wherever a line calls it."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    words.whitespace_split = True
    found, before = None, ";"
    for word in [*words, ";"]:
        if set(word) <= set("|&;"):
            if found is not None:
                yield found
            found = None
        elif found is not None:
            found.append(word)
        elif word.endswith("/bin/auditord") or (word == "auditord" and before in {";", "|", "&&", "--"}):
            found = list[str]()
        before = word


def fault_of(arguments: Sequence[str]) -> str | None:
    """The first word of a call that is no command, or no option of it."""
    command: click.Command = auditord
    words = iter(arguments)
    for word in words:
        if word.startswith("-"):
            name, _, value = word.partition("=")
            options = {each: option for option in command.get_params(CONTEXT) for each in option.opts}
            if name not in options:
                return f"{command.name} has no option {name}"
            option = options[name]
            if not (value or (isinstance(option, click.Option) and (option.is_flag or option.count))):
                next(words, None)
        elif isinstance(command, click.Group):
            below = command.get_command(CONTEXT, word)
            if below is None:
                return f"{command.name} has no command {word}"
            command = below
    return None


def place_alone(value: str) -> str:
    return value if re.fullmatch(r"[\w-]+:\d+", value) else ""


@pytest.mark.parametrize(("place", "part", "text"), blocks("yaml"), ids=place_alone)
def test_configurations_load(place: str, part: str, text: str, tmp_path: Path) -> None:
    begun = next(first for each, _, first in blocks("yaml") if each.partition(":")[0] == place.partition(":")[0])
    nested = textwrap.dedent(text)
    for key in reversed(part.split(".") if part else []):
        nested = f"{key}:\n{textwrap.indent(nested, '  ')}"
    (tmp_path / "first.yml").write_text(f"state_dir: /var/lib/auditord\n{begun if part else ''}")
    (tmp_path / "then.yml").write_text(nested)
    files = [tmp_path / "first.yml", tmp_path / "then.yml"]
    load_with_sources(files, KINDS, {}, lambda _: SecretStr("sesame-open-the-door"))


@pytest.mark.parametrize(("place", "part", "text"), blocks("sh"), ids=place_alone)
def test_scripts_parse(place: str, part: str, text: str) -> None:
    assert not part
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (place, done.stderr) == (place, "")


@pytest.mark.parametrize(("place", "part", "text"), blocks("python"), ids=place_alone)
def test_python_parses(place: str, part: str, text: str) -> None:
    assert not part or part.endswith(".py")  # a file of the tutorial
    assert ast.parse(text, place).body


def test_sessions_begin_with_a_prompt_and_no_block_has_another_language() -> None:
    languages = {token.info.split(" ")[0] for path in DOCUMENTS for token in tokens(path) if token.type == "fence"}
    assert languages <= {"", "console", "python", "sh", "text", "toml", "yaml"}
    assert [place for place, _, text in blocks("console") if not text.startswith(("# ", "$ "))] == []


def test_every_command_that_is_typed_is_there_with_its_options() -> None:
    typed = [(place, call) for place, line in shell_lines() for call in calls(line)]
    assert len(typed) > 20
    assert {f"{place}: {fault}" for place, call in typed if (fault := fault_of(call))} == set()


def test_every_command_in_the_text_is_there_with_its_options() -> None:
    named = [(place, call) for place, text in spans() for call in calls(re.sub(r"[|…\[\]]", " ", text))]
    assert len(named) > 50
    assert {f"{place}: {fault}" for place, call in named if (fault := fault_of(call))} == set()


def test_what_is_not_there_is_found() -> None:
    assert fault_of(["records", "corect"]) == "records has no command corect"
    assert fault_of(["collect", "slurm", "--form", "2026-01-01"]) == "collect has no option --form"
    assert [*calls("runuser -u auditord -- auditord config check && /opt/auditord/bin/auditord run | head")]
