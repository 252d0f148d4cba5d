"""``auditord doctor``: check everything that the configuration refers to."""

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import fill, indent
from typing import Final

import anyio
import click

from auditord.cli.daemons import connected
from auditord.cli.installation import Installation, load_installation, run_async, utc_now
from auditord.cli.tables import new_table, print_table
from auditord.config.merging import CONTROL_FILE
from auditord.doctor import Examined, examine
from auditord.errors import DaemonError
from auditord_hookspecs.checks import Severity
from auditord_hookspecs.terminal import escaped, output_option, say, say_lines, write_json
from auditord_hookspecs.wording import counted

EXIT_CODES: Final = {Severity.OK: 0, Severity.WARNING: 1, Severity.FAILURE: 2}
"""The exit codes of monitoring plug-ins."""

_ANSWER_SECONDS: Final = 10.0
"""The time limit for a running daemon to report its health."""

_LINE: Final = 98
"""The width of a finding in a pipe, after two spaces."""

_WORDS: Final = {"ok": "OK", "warning": "WARNING", "failure": "CRITICAL"}


@click.command("doctor")
@output_option
@click.option("--all", "show_all", is_flag=True, help="Also list checks that passed.")
def doctor_command(*, output: str, show_all: bool) -> None:
    """Check what the configuration refers to: programs, columns, certificates, database, disks, clocks.

    Changes nothing; works with and without a running daemon. The exit code suits monitoring plug-ins: 0 OK, 1 warnings,
    2 failures.
    """
    exit_with(examined(load_installation()), output, show_all=show_all)


def examined(installation: Installation) -> Sequence[Examined]:
    """Run all checks of an installation."""
    return run_async(_examine, installation)


async def _examine(installation: Installation) -> Sequence[Examined]:
    configuration = installation.configuration
    refused = await _refused_hosts(configuration.state_dir / CONTROL_FILE)
    return await examine(configuration, installation.hooks, utc_now, refused)


async def _refused_hosts(control: Path) -> Collection[str]:
    """Return the host names for which the running daemon has refused requests; empty if it does not answer."""
    with anyio.move_on_after(_ANSWER_SECONDS), suppress(DaemonError, PermissionError):
        async with connected(control) as daemon:
            if daemon is not None:
                return (await daemon.health()).refused_hosts
    return ()


def exit_with(found: Sequence[Examined], output: str, *, show_all: bool) -> None:
    """Print findings, the worst first, and exit with their code."""
    found = _worst_first(found)
    if output == "json":
        write_json(found)
    else:
        print_findings(found, show_all=show_all)
    raise SystemExit(max((EXIT_CODES[Severity(each.severity)] for each in found), default=0))


def _worst_first(found: Sequence[Examined]) -> Sequence[Examined]:
    order = [severity.value for severity in reversed(Severity)]
    return sorted(found, key=lambda each: order.index(each.severity))


def print_findings(found: Sequence[Examined], *, show_all: bool) -> None:
    """Print a table of findings, the worst first, and a line that counts them."""
    found = _worst_first(found)
    _print([each for each in found if show_all or each.severity != "ok"])
    worst = found[0].severity if found else "ok"
    counts = Counter(each.severity for each in found)
    faults = f"{counted(counts['failure'], 'failure')}, {counted(counts['warning'], 'warning')}"
    say(f"{_WORDS[worst]}: {faults}, {counted(counts['ok'], 'is', 'are')} well")


def _print(found: Sequence[Examined]) -> None:
    if not sys.stdout.isatty():  # a table would have very long lines
        _print_blocks(found)
        return
    table = new_table("", "where", "what", "how it is", "what to do")
    for each in found:
        table.add_row(each.severity, each.where, each.subject, each.text, each.remedy)
    print_table(table)


def _print_blocks(found: Sequence[Examined]) -> None:
    for each in found:
        say(f"{each.severity}: {each.where}, {each.subject}")
        for text in filter(None, (each.text, each.remedy and f"to do: {each.remedy}")):
            say_lines(indent(fill(escaped(text), _LINE, break_long_words=False, break_on_hyphens=False), "  "))
