"""``auditord init``: a first configuration, made of what is found on this host and of a few answers."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from shlex import join

import click

from auditord.cli.frame import config_paths
from auditord.cli.init_answers import AUDITOR, Found, answers_to, chosen_collectors, given_answers
from auditord.cli.init_file import (
    FRAGMENTS,
    configuration_text,
    refuse_a_file_that_counts,
    refuse_a_folder_of_others,
    write_configuration,
    write_secret,
)
from auditord.cli.init_host import ThisHost, find_auditor, find_postgresql, proposals
from auditord.cli.installation import program, utc_now
from auditord.config.kinds import InstalledKinds
from auditord.config.loading import DEFAULT_FILE, load_text
from auditord.hooks import load_hooks
from auditord_hookspecs.proposals import Answers, Host
from auditord_hookspecs.terminal import say


@click.command("init")
@click.option("--yes", is_flag=True, help="Ask nothing: take the default of every answer that --answers does not give.")
@click.option(
    "--answers",
    "answers_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Take answers from a YAML file: the names of questions, each with its answer.",
)
def init_command(*, yes: bool, answers_file: Path | None) -> None:
    """Write a first configuration that fits this host: the file of --config, or /etc/auditord/auditord.yml.

    Looks for batch systems, PostgreSQL, an AUDITOR, an APEL client and a Waldur agent, asks a few questions, checks
    what it made, shows what the last day would have given, and says what to do next. A file that sets anything is
    never changed; one of comments alone, as packages bring it, is put aside.
    """
    paths = config_paths()
    file = paths[-1] if paths else DEFAULT_FILE
    refuse_a_file_that_counts(file)
    refuse_a_folder_of_others(file)
    hooks = load_hooks([])
    host = ThisHost()
    found = look_around(host, hooks.kinds)
    for line in found.lines():
        say(f"found: {line}")
    if not found.collectors:
        say("found no batch system that an installed hook module knows: the configuration serves the API alone")
    answers = answers_to(found, utc_now(), given_answers(answers_file), ask=not yes)
    text, secrets = configuration_text(found, answers, file)
    load_text(text, str(file), hooks.kinds, {"HOME": "/"})
    for secret in secrets:
        say(f"wrote {secret}: keep it" if write_secret(secret, file) else f"took {secret}, which was there")
    if (aside := write_configuration(file, text)) is not None:
        say(f"{file} held nothing but comments: it is {aside} now")
    say(f"wrote {file}")
    look_at_result(answers["since"])
    say("")
    say("Next:")
    for line in (*_next_steps(file, found, answers), _start(file, host)):
        say(f"  {line}")


def look_around(host: Host, kinds: InstalledKinds) -> Found:
    """All that can be found on a host."""
    every = list(proposals(kinds, host))
    collectors = {name: each for section, name, each in every if section == "collectors" and each.options is not None}
    imports = {name: each for _, name, each in every if each.imports}
    if (auditor := find_auditor(host)) is not None:
        imports = {AUDITOR: auditor, **imports}
    transforms = {name: each for section, name, each in every if section == "transforms"}
    return Found(collectors, imports, find_postgresql(host), transforms)


def look_at_result(since: str) -> None:
    """Check what was written, with a dry run of each collector."""
    from auditord.cli.init_trial import look  # noqa: PLC0415 most of the daemon

    look(datetime.fromisoformat(since).replace(tzinfo=UTC))


def _next_steps(file: Path, found: Found, answers: Answers) -> Iterator[str]:
    option = _option(file)
    for name, proposal in found.imports.items():
        target = (file.parent if file.parent.name == "conf.d" else file.parent / "conf.d") / f"{name}.yml"
        made = "" if target.parent.is_dir() else f"mkdir {target.parent} && "
        yield f"{made}{program()} config import {join(map(str, proposal.imports))} > {target}"
    if answers.get("store", "sqlite") != "sqlite":
        if found.postgresql is not None:
            yield from found.postgresql.steps
        yield f"{program()} database migrate{option}"
    if answers.get(AUDITOR):
        yield f"{program()} import auditor {answers[AUDITOR]}{option}"
    for name in chosen_collectors(found, answers):
        yield f"{program()} collect {name} --dry-run --from {answers['since']}{option} | head"


def _option(file: Path) -> str:
    return "" if file == DEFAULT_FILE or file.parent == FRAGMENTS else f" --config {file}"


def _start(file: Path, host: Host) -> str:
    is_service = not _option(file) and host.run(["systemctl", "cat", "auditord.service"]) is not None
    return "systemctl enable --now auditord" if is_service else f"{program()} run{_option(file)}"
