"""``auditord doctor``: look at everything that the configuration refers to."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import click

from auditord.cli.installation import Installation, load_installation, run_async, utc_now
from auditord.cli.tables import new_table, print_table
from auditord.doctor import Examined, examine
from auditord_hookspecs.checks import Severity
from auditord_hookspecs.terminal import output_option, say, write_json
from auditord_hookspecs.wording import counted

EXIT_CODES: Final = {Severity.OK: 0, Severity.WARNING: 1, Severity.FAILURE: 2}
"""Those of monitoring plug-ins."""

_WORDS: Final = {"ok": "OK", "warning": "WARNING", "failure": "CRITICAL"}


@click.command("doctor")
@output_option
@click.option("--all", "show_all", is_flag=True, help="Also list what is well.")
def doctor_command(*, output: str, show_all: bool) -> None:
    """Look at everything outside the configuration's files: programs, columns, certificates, database, disks, clocks.

    Changes nothing, works beside a running daemon and without one. Exit code, as monitoring plug-ins have it: 0 all is
    well, 1 there are warnings, 2 there are failures.
    """
    exit_with(examined(load_installation()), output, show_all=show_all)


def examined(installation: Installation) -> Sequence[Examined]:
    """The findings of an installation."""
    return run_async(examine, installation.configuration, installation.hooks, utc_now)


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
    table = new_table("", "where", "what", "how it is", "what to do")
    for each in found:
        table.add_row(each.severity, each.where, each.subject, each.text, each.remedy)
    print_table(table)
