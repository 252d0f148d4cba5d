"""Man pages: auditord(1), one for each command, auditord-epilog(1) and auditord.yml(5); all made of the manual.

(click-man writes a page per command as well, but none with files, environment and exit status.)
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

import click

from auditord import __version__
from auditord.cli import auditord
from auditord.cli.reference import command_markdown, option_lines
from auditord.manual import text_of
from auditord.manual.roff import man_page

_DESCRIPTION: Final = """\
## SYNOPSIS

**auditord** [*OPTIONS*] *COMMAND* [*ARGUMENTS*]

## DESCRIPTION

auditord collects finished jobs from batch systems, keeps them as records, serves them over the REST API of AUDITOR and
reports them. One daemon, `auditord run`, does all of it; the other commands look at its work or ask it for more.
`auditord manual` has the whole manual.
"""

_ENDING: Final = """\
## FILES

- `/etc/auditord/auditord.yml`: The configuration, see **auditord.yml**(5).
- `/etc/auditord/conf.d/*.yml`: Merged into it in the order of their names.
- `/etc/auditord/credentials`: Secrets for the service; credential:secret_NAME in the configuration is file NAME.
- `/var/lib/auditord`: The queue, how far collectors have read, and the records, unless store.url says otherwise.
- `/run/auditord/api.sock`: The API for the group of the service.

## ENVIRONMENT

- `AUDITORD_CONFIG`: Files to read where --config names none, with colons between them.
- `AUDITORD_SECTION__OPTION`: Wins over the files: AUDITORD_COLLECTORS__SLURM__INTERVAL=10m. Lists are JSON.
- `AUDITOR_APPLICATION__*, AUDITOR_DATABASE__*, AUDITOR_LOG_LEVEL`: AUDITOR's; understood, with a warning.

## EXIT STATUS

- `0`: What was asked for is done.
- `1`: It could not be done; standard error says why.
- `2`: The command line is wrong.
- `3`: status: no daemon answers. database status: a migration is due.
"""


@cache
def man_pages() -> Mapping[str, str]:
    """All pages by the names of their files."""
    context = click.Context(auditord, info_name="auditord", **auditord.context_settings)
    helps = {name: _help(context, name) for name in auditord.list_commands(context)}
    listed = "\n".join(f"- `auditord {name}`: {text} See **auditord-{name}**(1)." for name, text in helps.items())
    options = "\n".join(option_lines(auditord, context))
    text = f"{_DESCRIPTION}\n## OPTIONS\n\n{options}\n\n## COMMANDS\n\n{listed}\n\n{_ENDING}"
    return {
        "auditord.1": _page("auditord", 1, "accounting of computing resources", text),
        **{f"auditord-{name}.1": _page(f"auditord-{name}", 1, text, _described(name)) for name, text in helps.items()},
        "auditord-epilog.1": _page(
            "auditord-epilog", 1, "note that a job of Slurm has ended", text_of("auditord-epilog")
        ),
        "auditord.yml.5": _page("auditord.yml", 5, "configuration of auditord", text_of("options")),
    }


def _help(context: click.Context, name: str) -> str:
    command = auditord.get_command(context, name)
    return command.get_short_help_str(200) if command is not None else ""


def _described(name: str) -> str:
    """The sections of a command's page."""
    return f"{command_markdown(name)}\n## SEE ALSO\n\n**auditord**(1), **auditord.yml**(5)\n"


def _page(name: str, section: int, summary: str, text: str) -> str:
    return man_page(name, section, summary.rstrip("."), text, __version__)
