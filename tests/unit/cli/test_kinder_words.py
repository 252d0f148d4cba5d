"""Words of the command line for people: a guide, distances in time, what to do without a terminal; and of the log."""

import logging
from datetime import timedelta

import click
import pytest
from click.testing import CliRunner

from auditord.cli import auditord
from auditord.cli.status import distance
from auditord.tasks.runs import log_run
from auditord.testing import EPOCH
from auditord_hookspecs import RunReport
from auditord_hookspecs.terminal import confirm
from auditord_hookspecs.wire import format_time


def test_without_a_command_it_is_a_short_guide() -> None:
    done = CliRunner().invoke(auditord, [])
    assert done.exit_code == 0
    assert "auditord init" in done.output
    assert all(len(line) <= 80 for line in done.output.splitlines()[2:])


@pytest.mark.parametrize("group", [(), ("lake",), ("database",), ("records",), ("waldur",)], ids=str)
def test_summaries_of_commands_are_whole(group: tuple[str, ...]) -> None:
    helped = CliRunner().invoke(auditord, [*group, "--help"]).output
    assert ("Commands:" in helped, "..." in helped.partition("Commands:")[2]) == (True, False)


def test_init_writes_the_file_of_its_option() -> None:
    assert "Write this file instead of" in CliRunner().invoke(auditord, ["init", "--help"]).output


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("statsu", "Did you mean 'status'?"),
        ("xyzzy", "No such command 'xyzzy'."),
        ("records corect", "Did you mean 'correct'?"),
        ("report utilisatoin", "Did you mean 'utilisation'?"),
        ("waldur repot", "Did you mean 'report'?"),
    ],
)
def test_a_misspelt_command_is_guessed(typed: str, said: str) -> None:
    done = CliRunner().invoke(auditord, typed.split())
    assert (done.exit_code, said in done.output, "Did you mean" in done.output) == (2, True, typed != "xyzzy")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s ago"),
        (-59, "59 s ago"),
        (-300, "5 min ago"),
        (-7_300, "2 h ago"),
        (-200_000, "2 d ago"),
        (240, "in 4 min"),
    ],
)
def test_times_are_said_as_distances(seconds: float, said: str) -> None:
    assert distance(format_time(EPOCH + timedelta(seconds=seconds)), EPOCH) == said


def test_a_time_that_is_not_known_is_no_distance() -> None:
    assert distance(None, EPOCH) == ""


@pytest.mark.parametrize(
    ("given", "code", "said"), [("", 2, "cannot ask without a terminal: give --yes"), ("n\n", 1, ""), ("y\n", 0, "")]
)
def test_without_a_terminal_a_question_names_the_way_out(given: str, code: int, said: str) -> None:
    @click.command()
    def command() -> None:
        confirm("Correct it?", yes=False)

    done = CliRunner().invoke(command, input=given)
    assert (done.exit_code, said in done.output) == (code, True)


@pytest.mark.parametrize(
    ("section", "records", "error", "level"),
    [
        ("collectors", 0, None, logging.DEBUG),
        ("collectors", 1, None, logging.INFO),
        ("collectors", 0, "sacct is away", logging.ERROR),
        ("plugins", 0, None, logging.INFO),
    ],
)
def test_a_collector_that_found_nothing_is_worth_no_line(
    section: str, records: int, error: str | None, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        log_run(section, RunReport("slurm", "slurm", EPOCH, timedelta(seconds=1), error, records))
    assert [each.levelno for each in caplog.records] == [level]
