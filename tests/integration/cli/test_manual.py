"""The manual page: every command is in it, and roff takes nothing of it for its own."""

import shutil
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from auditord.cli import auditord
from auditord.cli.manual import manual_page

PAGE = manual_page()


def commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from commands(command, below)
        else:
            yield below.command_path


def test_every_command_has_its_heading() -> None:
    wanted = set(commands(auditord, click.Context(auditord, info_name="auditord")))
    assert {"auditord run", "auditord database migrate", "auditord waldur report"} <= wanted
    assert {path for path in wanted if rf".SS \fB{path}\fR".replace("-", r"\-") not in PAGE} == set()


def test_options_stand_where_they_belong_and_once_where_all_have_them() -> None:
    assert PAGE.count(r"\-\-config FILE") == 1
    assert PAGE.count(r"\-\-job\-id TEXT") == 1
    assert PAGE.index(".SS \\fBauditord collect") < PAGE.index(r"\-\-job\-id TEXT")


def test_the_program_prints_the_same() -> None:
    done = subprocess.run([sys.executable, "-m", "auditord.cli.manual"], capture_output=True, text=True, check=True)
    assert done.stdout == PAGE


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_roff_has_no_complaint_and_every_line_arrives() -> None:
    command = ["groff", "-man", "-ww", "-Kutf8", "-Tutf8", "-P-cbou"]
    done = subprocess.run(command, input=PAGE, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    words = set(done.stdout.split())
    assert {"AUDITORD(1)", "--dry-run", "/etc/auditord/conf.d/*.yml", "AUDITORD_SECTION__OPTION"} <= words
