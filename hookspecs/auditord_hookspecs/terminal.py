"""Functions that print untrusted text safely: no id, name or message can control the terminal or forge another line.

Control characters (including C1), invisible characters, characters that change the direction of writing, and line
breaks are escaped in JSON's notation. Commands print only with these functions:

- :func:`say`: one line for people;
- :func:`say_lines`: several lines, in which external text must already be :func:`escape`;
- :func:`write`: output for programs, which is escaped only if standard output is a terminal;
- :func:`write_json`: JSON for programs, for commands with :data:`output_option`.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from io import TextIOBase
from typing import Any, Final, TextIO, TypeVar, cast

import click
from typing_extensions import override

T = TypeVar("T")

output_option: Final = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, or JSON for programs.",
)
"""The option of commands that print a result, as the parameter ``output``."""

json_option: Final = click.option(
    "--output",
    type=click.Choice(["json"]),
    default="json",
    expose_value=False,
    show_default=True,
    help="The output is always JSON.",
)
"""The option of commands that print only JSON, so that programs can pass it to every command."""


class ReadBy(click.ParamType[T]):
    """The type of a parameter that a function parses. The text of its ValueError is shown to the user.

    Args:
        name: the placeholder for the value in the help, such as ``YYYY-MM``.
        read: parses a text. It is not called for a default that is not a text.
    """

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name = name
        self._read = read

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # Any: click's own
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def check_period(start: datetime | None, stop: datetime | None, options: tuple[str, str] = ("--from", "--to")) -> None:
    """Raise click's UsageError if a period between the values of two options is empty; None has no bound."""
    if start is not None and stop is not None and stop <= start:
        end, begin = stop.isoformat(timespec="minutes"), start.isoformat(timespec="minutes")
        raise click.UsageError(f"{options[1]} ({end}) must be later than {options[0]} ({begin})")


_DUMB: Final = ("dumb", "unknown")
"""Values of ``TERM`` for terminals without bold letters."""

_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask.")
"""The option of commands that :func:`confirm` an irreversible change, as the parameter ``yes``."""


def confirm(question: str, *, yes: bool) -> None:
    """Ask the user on standard error and return if the answer is yes. With ``yes``, return without asking.

    Raises:
        UsageError: standard input is not a terminal.
        Abort: the answer is no.
    """
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as ended:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("cannot ask without a terminal: give --yes") from ended
    if not agreed:
        raise click.Abort


def escape(text: str) -> str:
    """Return the text on one line, with unprintable characters escaped."""
    if text.isprintable():
        return text
    escaped: list[str] = []
    for each in text:
        if each.isprintable() or each in _SHORT:
            escaped.append(_SHORT.get(each, each))
        else:  # in JSON's form, with surrogate pairs above 16 bits, so that escaped JSON has the same meaning
            encoded = each.encode("utf-16-be", "surrogatepass")
            escaped += (f"\\u{encoded[at : at + 2].hex()}" for at in range(0, len(encoded), 2))
    return "".join(escaped)


def escape_lines(text: str) -> str:
    """Return the text with unprintable characters escaped, except line breaks and tabs."""
    return "\n".join("\t".join(map(escape, line.split("\t"))) for line in text.split("\n"))


def say(line: str = "", *, err: bool = False, bold: bool = False, out: TextIO | None = None) -> None:
    """Print one line to standard output, standard error or ``out``. It can be bold if the terminal supports that."""
    styled = bold and (out or sys.stdout).isatty() and os.environ.get("TERM") not in _DUMB
    click.echo(click.style(escape(line), bold=True) if styled else escape(line), file=out, err=err)


def say_cells(cells: Iterable[str]) -> None:
    """Print a line of cells, separated by tabs."""
    click.echo("\t".join(map(escape, cells)))


def say_lines(text: str, *, err: bool = False) -> None:
    """Print lines, with a line break at the end."""
    click.echo(escape_lines(text), err=err)


def say_error(text: str) -> None:
    """Print the error that ends a command. Further lines are indented, so that they cannot pass for other messages."""
    first, *others = text.split("\n")
    say(f"auditord: {first}", err=True)
    for line in others:
        say(line if line.startswith(" ") else f"  {line}", err=True)


def write(text: str) -> None:
    """Write output for programs to standard output."""
    output().write(text)


def write_json(value: Any) -> None:  # Any: nested dataclasses, mappings, texts, numbers and times
    """Write a value as JSON to standard output."""
    import msgspec  # noqa: PLC0415 most commands write text

    write(json.dumps(msgspec.to_builtins(value, str_keys=True), indent=2, ensure_ascii=False) + "\n")


def output() -> TextIO:
    """Return the stream for machine-readable output. On a terminal, control characters are escaped."""
    return cast("TextIO", _Screen(sys.stdout)) if sys.stdout.isatty() else sys.stdout


class _Screen(TextIOBase):
    """A terminal on which control characters are escaped."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str, /) -> int:
        return self._file.write(escape_lines(text))

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self._file.flush()
