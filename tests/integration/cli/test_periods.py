"""Every command with a period refuses one that does not end after it starts, instead of finding nothing in it."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from auditord.cli import auditord

PAIRS = (("--from", "--to"), ("--started-since", "--started-before"), ("--stopped-since", "--stopped-before"))


def periods(group: click.Group, context: click.Context, *path: str) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Each command with both options of a period, with a word for each argument that it requires."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from periods(command, click.Context(command, info_name=name, parent=context), *path, name)
        options = {each: param for param in command.params for each in param.opts}
        required = ["x" for param in command.params if isinstance(param, click.Argument) and param.required]
        for pair in PAIRS:
            if options.keys() >= {*pair} and options[pair[0]].metavar != "URL":
                yield (*path, name, *required), *pair


FOUND = sorted(periods(auditord, click.Context(auditord, info_name="auditord")))


def test_the_commands_are_found() -> None:
    names = {" ".join(words) for words, *_ in FOUND}
    assert names >= {"records", "collect x", "audit", "top", "report usage", "apel republish"}
    assert not [name for name in names if name.startswith("database")]


@pytest.mark.parametrize("stop", ["2026-06-30", "2026-07-01"])
@pytest.mark.parametrize(("words", "since", "before"), FOUND, ids=lambda each: "-".join(each) if each else "")
def test_a_period_that_does_not_end_after_it_starts_is_refused(
    words: tuple[str, ...], since: str, before: str, stop: str
) -> None:
    done = CliRunner().invoke(auditord, [*words, since, "2026-07-01", before, stop])
    assert done.exit_code == 2, done.output
    assert "must be later than" in done.output
    assert before in done.output
