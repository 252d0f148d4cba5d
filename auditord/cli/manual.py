"""The manual page auditord(1), made of what the commands say about themselves: ``python -m auditord.cli.manual``.

Commands that hook modules provide are in it, as far as they are installed. (click-man writes a page per command, none
with files, environment and exit codes.)
"""

import inspect
from collections.abc import Iterator
from typing import Final

import click

from auditord import __version__
from auditord.cli import auditord
from auditord_hookspecs.terminal import write

_ENTRY: Final = """\
auditord collects finished jobs from batch systems, keeps them as records, serves them over the REST API of AUDITOR \
and reports them. One daemon, auditord run, does all of it; the other commands look at its work or ask it for more."""

_FILES: Final = (
    ("/etc/auditord/auditord.yml", "The configuration; all options are in it as comments."),
    ("/etc/auditord/conf.d/*.yml", "Merged into it in the order of their names."),
    ("/etc/auditord/credentials", "Secrets for the service; credential:secret_NAME in the configuration is file NAME."),
    ("/var/lib/auditord", "The queue, how far collectors have read, and the records, unless store.url says otherwise."),
    ("/run/auditord/api.sock", "The API for the group of the service."),
)
_ENVIRONMENT: Final = (
    ("AUDITORD_SECTION__OPTION", "Wins over the files: AUDITORD_COLLECTORS__SLURM__INTERVAL=10m. Lists are JSON."),
    ("AUDITOR_APPLICATION__*, AUDITOR_DATABASE__*, AUDITOR_LOG_LEVEL", "AUDITOR's; understood, with a warning."),
)
_EXIT: Final = (
    ("0", "What was asked for is done."),
    ("1", "It could not be done; standard error says why."),
    ("2", "The command line is wrong."),
    ("3", "status: no daemon answers. database status: a migration is due."),
)
_EVERYWHERE: Final = frozenset({"--config", "--help"})


def manual_page() -> str:
    """The page in the macros of man(7)."""
    context = click.Context(auditord, info_name="auditord", **auditord.context_settings)
    lines = [
        f'.TH AUDITORD 1 "" "auditord {_escaped(__version__)}" "auditord"',
        *_section("NAME", r"auditord \- accounting of computing resources"),
        *_section("SYNOPSIS", r"\fBauditord\fR [\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGUMENTS\fR]"),
        *_section("DESCRIPTION", _escaped(_ENTRY)),
        *_section("OPTIONS", *_options(auditord, context)),
        *_section("COMMANDS", *_commands(auditord, context)),
        *_section("FILES", *_list(_FILES)),
        *_section("ENVIRONMENT", *_list(_ENVIRONMENT)),
        *_section("EXIT STATUS", *_list(_EXIT)),
        *_section("SEE ALSO", r"\fBsacct\fR(1), \fBsystemd.service\fR(5), \fBsystemd.exec\fR(5)"),
    ]
    return "".join(f"{line}\n" for line in lines)


def _section(title: str, *lines: str) -> Iterator[str]:
    yield f".SH {title}"
    yield from lines


def _list(entries: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for term, text in entries:
        yield from (".TP", rf"\fB{_escaped(term)}\fR", _escaped(text))


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    """Every command below a group, each with its own heading; groups only by what is in them."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        below = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, below)
        else:
            yield from _command(command, below)


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    yield rf".SS \fB{_escaped(context.command_path)}\fR {_escaped(' '.join(['[OPTIONS]', *usage]))}"
    for number, paragraph in enumerate(inspect.cleandoc(command.help or "").split("\n\n")):
        yield from (
            (".PP", _escaped(" ".join(paragraph.split()))) if number else (_escaped(" ".join(paragraph.split())),)
        )
    yield from _options(command, context, _EVERYWHERE)


def _options(command: click.Command, context: click.Context, left_out: frozenset[str] = frozenset()) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None and not left_out.intersection(parameter.opts):
            yield from (".TP", rf"\fB{_escaped(record[0])}\fR", _escaped(record[1]) or r"\&")


def _escaped(text: str) -> str:
    r"""Text in which no character means anything to roff: ``\``, ``-`` (else a hyphen), and a dot or quote in front."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("…", "...").replace("'", r"\(aq")
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    write(manual_page())
