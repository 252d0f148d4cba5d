"""``auditord doctor``: run the checks of features and kinds, each with its own error handling and time limit."""

import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from textwrap import fill, indent
from typing import Any, Final

import anyio
import click
import msgspec

from auditord.checks import check_pair, check_tokens
from auditord.cli.daemons import connect
from auditord.cli.installation import Installation, load_installation, run_async, utc_now
from auditord.cli.tables import new_table, print_table
from auditord.config.files import tls_files
from auditord.config.merging import CONTROL_FILE
from auditord.config.model import Configuration, kind_of
from auditord.config.shown import HIDDEN_REMARK
from auditord.contexts.instances import InstanceContext, environment_of
from auditord.errors import PERMISSION_REMEDY, DaemonError
from auditord.features import register_features
from auditord.hooks import Hooks
from auditord.web.access.authorisation import HostAuthenticatorContext
from auditord_hookspecs import AuditordError, Context, InstanceConfig
from auditord_hookspecs.arguments import HIDDEN, hide_in_text
from auditord_hookspecs.checks import Check, Finding, Severity
from auditord_hookspecs.terminal import escape, output_option, say, say_error, say_lines, write_json
from auditord_hookspecs.wording import counted

EXIT_CODES: Final = {Severity.OK: 0, Severity.WARNING: 1, Severity.FAILURE: 2}
"""The exit codes of monitoring plug-ins."""

_ANSWER_SECONDS: Final = 10.0
"""The time limit for a running daemon to report its health."""

_LINE: Final = 98
"""The width of a finding in a pipe, after two spaces."""

_WORDS: Final = {"ok": "OK", "warning": "WARNING", "failure": "CRITICAL"}

LONGEST: Final = 120.0
"""Seconds that the checks of one place may take."""


class Examined(msgspec.Struct, frozen=True):
    """A finding with its place in the configuration; also one object of ``auditord doctor --output json``."""

    where: str
    severity: str
    subject: str
    text: str
    remedy: str


@click.command("doctor")
@output_option
@click.option("--all", "show_all", is_flag=True, help="Also list checks that passed.")
def doctor_command(*, output: str, show_all: bool) -> None:
    """Check what the configuration refers to: programs, columns, certificates, database, disks, clocks.

    Changes nothing; works with and without a running daemon. The exit code suits monitoring plug-ins: 0 OK, 1 warnings,
    2 failures.
    """
    exit_with(run_checks(load_or_exit(load_installation)), output, show_all=show_all)


def load_or_exit(load: Callable[[], Installation]) -> Installation:
    """Return the installation. If it cannot be used, which is a failure too, print why and exit."""
    try:
        return load()
    except AuditordError as error:
        say_error(str(error))
        raise SystemExit(EXIT_CODES[Severity.FAILURE]) from error


def run_checks(installation: Installation) -> Sequence[Examined]:
    return run_async(_examine, installation)


async def _examine(installation: Installation) -> Sequence[Examined]:
    configuration = installation.configuration
    refused: Collection[str] = ()
    with anyio.move_on_after(_ANSWER_SECONDS), suppress(DaemonError, PermissionError):
        async with connect(configuration.state_dir / CONTROL_FILE) as daemon:
            if daemon is not None:
                refused = (await daemon.health()).refused_hosts
    return await examine(configuration, installation.hooks, utc_now, refused)


async def examine(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime], refused_hosts: Collection[str] = ()
) -> list[Examined]:
    """Run all checks, those of different places concurrently, and return the findings in the order of the places.

    Args:
        configuration: the daemon's configuration; the daemon need not run.
        hooks: the hook modules, whose kinds may have checks.
        now: the clock.
        refused_hosts: host names for which the running daemon has refused requests.
    """
    declared = register_features(hooks).declarations(
        "feature_checks", configuration=configuration, hooks=hooks, now=now, refused_hosts=refused_hosts
    )
    places = dict[str, AsyncIterator[Finding]](check for _, check in declared)
    for section, kinds in hooks.kinds.sections().items():
        for name, config in getattr(configuration, section).items():
            if config.enabled:
                kind: Any = kinds[kind_of(config)]  # Any: some declarations have a check
                context = (
                    HostAuthenticatorContext(name, kind.name, now, state_dir=configuration.state_dir)
                    if section == "authenticators"
                    else InstanceContext(name, kind.name, now, environment_of(config))
                )
                places[f"{section}.{name}"] = _check(getattr(kind, "check", None), config, context)
    found: dict[str, list[Finding]] = {}

    async def look(where: str, check: AsyncIterator[Finding]) -> None:
        found[where] = await _findings(check)

    async with anyio.create_task_group() as group:
        for where, check in places.items():
            group.start_soon(look, where, check)
    return [
        Examined(where, each.severity.value, *map(hide_in_text, (each.subject, each.text, each.remedy)))
        for where in places
        for each in found[where]
    ]


async def _findings(check: AsyncIterator[Finding]) -> list[Finding]:
    """Return the findings of a check; an exception becomes a finding."""
    found: list[Finding] = []
    try:
        with anyio.fail_after(LONGEST):
            async for finding in check:
                found.append(finding)  # noqa: PERF401 earlier findings stay if the next one raises
    except TimeoutError:
        text = f"not finished after {LONGEST:g} s"
        found.append(Finding(Severity.FAILURE, "check", text, "find out why it is slow"))
    except AuditordError as error:
        found.append(Finding(Severity.FAILURE, "check", str(error), "see the message"))
    except PermissionError as error:
        text = f"{error.filename or error}: permission denied"
        found.append(Finding(Severity.FAILURE, "check", text, PERMISSION_REMEDY))
    except Exception as error:  # noqa: BLE001 the boundary: a third party's check must not hide the others
        text = f"{type(error).__name__}: {error}"
        found.append(Finding(Severity.FAILURE, "check", text, "report this to the authors of the kind"))
    return found


async def _check(check: Check | None, config: InstanceConfig, context: Context) -> AsyncGenerator[Finding, None]:
    for tls in tls_files(config):
        for finding in check_pair(tls.ca, tls.certificate, tls.key, context.now()):
            yield finding
    for finding in check_tokens(config, context.now()):
        yield finding
    if check is not None:
        async for finding in check(config, context):
            yield finding


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
    listed = [each for each in found if show_all or each.severity != "ok"]
    if sys.stdout.isatty():
        table = new_table("", "where", "what", "finding", "what to do")
        for each in listed:
            table.add_row(each.severity, each.where, each.subject, each.text, each.remedy)
        print_table(table)
    else:  # a table would have very long lines
        for each in listed:
            say(f"{each.severity}: {each.where}, {each.subject}")
            for text in filter(None, (each.text, each.remedy and f"to do: {each.remedy}")):
                say_lines(indent(fill(escape(text), _LINE, break_long_words=False, break_on_hyphens=False), "  "))
    worst = found[0].severity if found else "ok"
    if any(HIDDEN in text for each in found for text in (each.subject, each.text, each.remedy)):
        say(HIDDEN_REMARK)
    counts = Counter(each.severity for each in found)
    faults = f"{counted(counts['failure'], 'failure')}, {counted(counts['warning'], 'warning')}"
    say(f"{_WORDS[worst]}: {faults}, {counts['ok']} passed")
