"""``auditord manual`` and the man pages: every topic, command and option is in them; roff takes nothing for its own."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.config.model import INSTANCE_SECTIONS, Configuration
from auditord.hooks import load_hooks
from auditord.manual import text_of, topics
from rpm.man_pages import man_pages

PAGES = man_pages()


def commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from commands(command, below)
        else:
            yield below.command_path


COMMANDS = sorted(commands(auditord, click.Context(auditord, info_name="auditord")))


def manual(*words: str) -> Result:
    return CliRunner().invoke(auditord, ["manual", *words])


def test_without_a_topic_all_are_listed_as_they_are_typed() -> None:
    listed = manual().output
    assert [name for name in topics() if f"- `auditord manual {name}`: " not in listed] == []
    assert {"slurm", "options", "commands", "metrics", "routes", "hooks"} <= topics().keys()


def test_in_a_pipe_a_topic_is_its_markdown() -> None:
    assert manual("slurm").output == text_of("slurm")
    assert manual("slurm.md").output == text_of("slurm")


def test_on_a_terminal_it_is_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "echo_via_pager", shown.append)
    with CliRunner().isolation():
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        auditord.main(["manual", "words"], standalone_mode=False)
        auditord.main(["manual", "slurm"], standalone_mode=False)
    text, slurm = shown
    assert "quarantine" in text
    assert "**" not in text
    assert "auditord manual " in slurm
    assert [link for link in (".md)", "(#") if link in slurm] == []


@pytest.mark.slow
def test_a_word_that_is_no_topic_is_searched_for() -> None:
    lines = manual("MinJobAge").output.splitlines()
    assert any(line.startswith("slurm ") and "MinJobAge" in line for line in lines)
    assert not any(line.startswith("apel ") for line in lines)


@pytest.mark.slow
def test_words_are_searched_for_together_and_a_topic_on_request() -> None:
    assert "auditord.yml" not in manual("requeues", "scontrol").output
    assert "What Slurm changes afterwards" in manual("requeues", "scontrol").output
    assert manual("--search", "slurm").output.startswith("topic")


def test_what_is_nowhere_is_an_error_that_lists_the_topics() -> None:
    done = manual("xyzzy")
    assert done.exit_code == 1
    assert "nothing about 'xyzzy'" in str(done.exception)
    assert "several-daemons" in str(done.exception)


def test_the_reference_has_every_command() -> None:
    assert {"auditord run", "auditord database migrate", "auditord waldur report"} <= set(COMMANDS)
    headings = {line.lstrip("#") for line in text_of("commands").splitlines() if line.startswith("##")}
    assert {path for path in COMMANDS if f" {path}" not in headings} == set()


def test_the_reference_has_every_option_of_the_host_and_of_every_kind() -> None:
    text = text_of("options")
    assert {name for name in Configuration.model_fields if f"\n- `{name}`" not in text} == set(INSTANCE_SECTIONS)
    for section, kinds in load_hooks([]).kinds.sections().items():
        for name, kind in kinds.items():
            part = text.partition(f"\n## {section}: kind {name}\n")[2].partition("\n## ")[0]
            options = [field.alias or option for option, field in kind.config.model_fields.items()]
            assert [option for option in options if f"\n- `{option}`: " not in part] == []


def test_defaults_are_written_as_in_a_configuration() -> None:
    text = text_of("options")
    assert re.search(r"^- `api\.max_body`: .*\. Size; default `64MiB`\.$", text, re.MULTILINE)
    slurm = text.partition("\n## collectors: kind slurm\n")[2]
    assert "- `interval`: Time between runs. Duration; default `5m`." in slurm


def test_there_is_a_man_page_for_each_command_with_all_below_it() -> None:
    assert {f"{path.split()[0]}-{path.split()[1]}.1" for path in COMMANDS} | {
        "auditord.1", "auditord-epilog.1", "auditord.yml.5"
    } == set(PAGES)  # fmt: skip
    for path in COMMANDS:
        name = path.split()[1]
        assert path.replace("-", r"\-") in PAGES[f"auditord-{name}.1"]
        assert "\\fBauditord " + name.replace("-", r"\-") + "\\fR" in PAGES["auditord.1"]


def test_options_stand_where_they_belong_and_once_where_all_have_them() -> None:
    assert PAGES["auditord.1"].count(r"\-\-config FILE") == 1
    assert r"\-\-config" not in PAGES["auditord-collect.1"]
    assert PAGES["auditord-collect.1"].count(r"\-\-job\-id TEXT") == 1


def test_packages_get_them(tmp_path: Path) -> None:
    program = Path(__file__).parents[3] / "rpm/man_pages.py"
    subprocess.run([sys.executable, str(program), str(tmp_path / "man")], check=True)
    assert {path.name: path.read_text() for path in (tmp_path / "man").iterdir()} == PAGES


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize("name", PAGES)
def test_roff_has_no_complaint(name: str) -> None:
    command = ["groff", "-man", "-ww", "-Wbreak", "-Kutf8", "-Tutf8", "-P-cbou"]  # a long word cannot be broken
    done = subprocess.run(command, input=PAGES[name], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert len(done.stdout.split()) > 20


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_every_line_arrives() -> None:
    command = ["groff", "-man", "-Kutf8", "-Tutf8", "-P-cbou"]
    done = subprocess.run(command, input=PAGES["auditord.1"], capture_output=True, text=True, check=True)
    shown = done.stdout.split()
    assert {"AUDITORD(1)", "/etc/auditord/conf.d/*.yml", "AUDITORD_SECTION__OPTION", "--version"} <= set(shown)
