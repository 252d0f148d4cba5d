"""``auditord init``: write a first configuration from the sources found on this host and a few answers."""

import errno
import glob
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shlex import join
from typing import Any, Final
from urllib.parse import quote

import anyio
import click
import msgspec

from auditord.actions import RunRequest
from auditord.cli.collect import Terminal, summary
from auditord.cli.frame import config_option, config_paths
from auditord.cli.installation import Installation, load_installation, program, run_async, utc_now
from auditord.cli.option_types import split_pair
from auditord.config.documents import Path as OptionPath
from auditord.config.documents import is_section
from auditord.config.kinds import InstalledKinds
from auditord.config.loading import load_text
from auditord.config.merging import DEFAULT_FILE, default_state_dir, read_files
from auditord.config.shown import Remarks, to_yaml
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.config.yaml_files import read_file
from auditord.errors import ConfigurationError
from auditord.hooks import load_hooks
from auditord_hookspecs import AuditordError, Batch, Produced, Window
from auditord_hookspecs.proposals import Answers, Detect, Host, NewSecret, NoAnswer, Proposal, Question
from auditord_hookspecs.terminal import say
from auditord_hookspecs.wire import encode_record

_PATIENCE: Final = 20.0
_READY: Final = re.compile(r"^(?P<host>.+):(?P<port>\d+) - ")
_SERVICE_USER: Final = "auditord"
_DATABASE: Final = "auditord"
_AUDITOR_FILES: Final = ("/etc/auditor/*.yml", "/etc/auditor/*.yaml")


class ThisHost:
    """The host on which the command runs; tests pass a fake."""

    environ: Mapping[str, str] = os.environ

    def run(self, argv: Sequence[str]) -> str | None:
        """Return the standard output of a program; None if it is missing, fails, or takes too long."""
        try:
            done = subprocess.run(  # noqa: S603 the kind chose the command
                argv, capture_output=True, text=True, check=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
            return None
        return done.stdout

    def find(self, *patterns: str) -> Sequence[Path]:
        """Return the existing files that match, in the order of the patterns."""
        found = [Path(name) for pattern in patterns for name in sorted(glob.glob(pattern))]  # noqa: PTH207 absolute
        return [path for path in found if path.is_file()]


def proposals(kinds: InstalledKinds, host: Host) -> Iterator[tuple[str, str, Proposal | NoAnswer]]:
    """Yield configuration section, kind name and proposal, or its error, of each kind that finds something."""
    for section in ("collectors", "plugins", "transforms"):
        for name, kind in kinds.sections()[section].items():
            detect: Detect | None = getattr(kind, "detect", None)
            try:
                if detect is not None and (proposal := detect(host)) is not None:
                    yield section, name, proposal
            except NoAnswer as error:
                yield section, name, error


def find_auditor(host: Host) -> Proposal | None:
    """Return a proposal to import the configuration of an AUDITOR and its collectors; None if there is none."""
    files = host.find(*_AUDITOR_FILES)
    return Proposal(f"AUDITOR, configured in {files[0].parent}", imports=files) if files else None


class Postgresql(msgspec.Struct, frozen=True):
    """A PostgreSQL server on this host.

    Args:
        url: the URL of the database for auditord.
        role: the PostgreSQL role of the daemon's user, which logs in without a password.
        is_ready: whether the role and the database exist.
    """

    url: str
    role: str
    is_ready: bool

    @property
    def found(self) -> str:
        """A description of the server."""
        rest = "accepts this role" if self.is_ready else "does not have this role and database yet"
        return f"PostgreSQL, which {rest}: {self.url}"

    @property
    def question(self) -> Question:
        """The question for the record store. PostgreSQL is the default only if it was prepared for auditord."""
        default = self.url if self.is_ready else "sqlite"
        return Question(
            "store", "Keep records in 'sqlite' (a file in state_dir), or in PostgreSQL at a URL", default, store_options
        )

    @property
    def steps(self) -> Sequence[str]:
        """The commands that create role and database; none if they exist."""
        psql = "runuser -u postgres -- psql"
        made = (
            f"""{psql} -c 'CREATE ROLE "{self.role}" LOGIN'""",
            f"""{psql} -c 'CREATE DATABASE {_DATABASE} OWNER "{self.role}"'""",
        )
        return () if self.is_ready else made


def find_postgresql(host: Host) -> Postgresql | None:
    """Return the server that libpq's programs find by default or by PGHOST and PGPORT; None if there is none."""
    if (ready := _READY.match(host.run(["pg_isready"]) or "")) is None:
        return None
    user = (host.run(["id", "-un"]) or _SERVICE_USER).strip()
    serves_another = user == "root" and host.run(["id", "-u", _SERVICE_USER]) is not None
    role = _SERVICE_USER if serves_another else user
    port = "" if ready["port"] == "5432" else f"&port={ready['port']}"
    url = f"postgresql://{role}@/{_DATABASE}?host={quote(ready['host'])}{port}"
    become = ("runuser", "-u", role, "--") if serves_another else ()
    is_ready = host.run([*become, "psql", "-XAtw", "-c", "SELECT 1", url]) is not None
    return Postgresql(url, role, is_ready)


def store_options(answer: str) -> Mapping[str, str]:
    """Return the section ``store`` for an answer; empty for SQLite in the state folder.

    Raises:
        ValueError: the answer is not the URL of a store.
    """
    if answer == "sqlite":
        return {}
    if not is_postgresql(answer):
        sqlite_path(answer)
    return {"url": answer}


AUDITOR: Final = "auditor"
"""The name of the question for the URL of an AUDITOR, and of the file into which its configuration is imported."""


class Found(msgspec.Struct, frozen=True):
    """Everything that was found on a host.

    Args:
        imports: configuration files of AUDITOR and other programs that can be imported, by the name of the new file.
        silent: the sources that are installed, but do not answer.
    """

    collectors: Mapping[str, Proposal]
    imports: Mapping[str, Proposal]
    postgresql: Postgresql | None = None
    transforms: Mapping[str, Proposal] = msgspec.field(default_factory=dict[str, Proposal])
    silent: Sequence[NoAnswer] = ()

    def lines(self) -> Iterator[str]:
        """Describe everything that was found, one line each."""
        for proposal in (*self.collectors.values(), *self.imports.values()):
            yield proposal.found
        if self.postgresql is not None:
            yield self.postgresql.found


def read_answers(file: Path | None) -> Answers:
    """Return the answers in a file; none without a file.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    words: Mapping[Any, str] = {True: "yes", False: "no", None: ""}  # Any: what YAML holds
    values: Mapping[str, Any] = {} if file is None else read_file(file).values
    return {
        name: words[value] if value is None or isinstance(value, bool) else str(value) for name, value in values.items()
    }


def answers_to(found: Found, now: datetime, given: Answers, *, ask: bool) -> Answers:
    """Return the answers to all questions: first the general questions, then those of the chosen collectors.

    Raises:
        ConfigurationError: an answer has no question, is invalid, or a question cannot be asked without a terminal.
    """
    general = [
        Question("site", "Name of the site", socket.gethostname().partition(".")[0]),
        Question("since", "First day of accounting (UTC)", f"{now:%Y-%m}-01", _first_day),
    ]
    if len(found.collectors) > 1:
        default = [name for name, proposal in found.collectors.items() if not proposal.gateway]
        text = "Collectors, separated by commas; a job that two of them see would count twice"
        general.append(Question("collectors", text, ",".join(default or found.collectors)))
    if AUDITOR in found.imports or AUDITOR in given:
        general.append(Question(AUDITOR, "URL of the AUDITOR whose records to import (empty: none)"))
    if found.postgresql is not None:
        general.append(found.postgresql.question)
    general += _questions_of(found.transforms.values())
    names = {question.name for question in (*general, *_questions_of(found.collectors.values()))}
    if unknown := sorted(given.keys() - names):
        raise ConfigurationError(
            f"there is no question '{unknown[0]}' on this host; questions are {', '.join(sorted(names))}"
        )
    answers = dict(_answer(general, given, ask=ask))
    further = _questions_of(choose_collectors(found, answers).values())
    return {**given, **answers, **dict(_answer(further, given, ask=ask))}


def choose_collectors(found: Found, answers: Answers) -> Mapping[str, Proposal]:
    """Return the collectors to configure. The question ``collectors`` is asked only if several were found.

    Raises:
        ConfigurationError: the answer names a collector that was not found.
    """
    if len(found.collectors) < 2:  # noqa: PLR2004 there is no choice
        return found.collectors
    names = [name for part in answers["collectors"].split(",") if (name := part.strip())]
    if unknown := [name for name in names if name not in found.collectors]:
        raise ConfigurationError(
            f"collectors: '{unknown[0]}' was not found on this host; found: {', '.join(found.collectors)}"
        )
    return {name: found.collectors[name] for name in names}


def _questions_of(proposals: Iterable[Proposal]) -> Sequence[Question]:
    """Return the questions of proposals, without duplicate names."""
    return list({question.name: question for proposal in proposals for question in proposal.questions}.values())


def _answer(questions: Sequence[Question], given: Answers, *, ask: bool) -> Iterator[tuple[str, str]]:
    missing = [question for question in questions if question.name not in given]
    if missing and ask and not sys.stdin.isatty():
        raise ConfigurationError(
            "there is no terminal for questions: use --yes, or give all answers with --answers FILE"
        )
    yield from ((each.name, given[each.name]) for each in questions if each.name in given)
    for each in missing:
        yield each.name, _ask(each) if ask else each.default


def _ask(question: Question) -> str:
    """Ask a question until the answer is right."""

    def check(text: str) -> str:
        if question.check is not None:
            try:
                question.check(text)
            except (ValueError, ConfigurationError) as error:
                raise click.UsageError(str(error)) from error
        return text

    is_shown = bool(question.default)
    return str(click.prompt(question.text, default=question.default, show_default=is_shown, value_proc=check))


FRAGMENTS: Final = DEFAULT_FILE.parent / "conf.d"
_HEAD: Final = """\
# Made by auditord init. Every option: auditord manual options. After a change: auditord config check.
# Records are served on 127.0.0.1:8000, and kept in {store}.

"""


def refuse_unfit(file: Path) -> None:
    """Raise, before any question, if the file exists, cannot be created, or has files beside it with collectors.

    Raises:
        ConfigurationError: one of these, or a file cannot be read.
    """
    if file.exists():
        raise ConfigurationError(
            f"{file} exists, and init does not change it: move it away, or write another file with --config, "
            f"such as {FRAGMENTS / 'site.yml'}, which is merged into {DEFAULT_FILE}"
        )
    document = read_files(sorted((file.parent / "conf.d").glob("*.yml")))
    if document.values.get("collectors"):
        place = document.origin(("collectors",))
        raise ConfigurationError(f"{place} has collectors already, and those of {file} would be merged with them")
    folder = next(each for each in file.absolute().parents if each.exists())
    if not os.access(folder, os.W_OK):
        raise _unwritable(file, os.strerror(errno.EACCES))


def configuration_text(found: Found, answers: Answers, file: Path) -> tuple[str, Sequence[Path]]:
    """Return the configuration as YAML with comments, and the paths of new secrets that it refers to.

    Raises:
        ConfigurationError: an answer is invalid.
    """
    chosen = {"collectors": choose_collectors(found, answers), "transforms": found.transforms}
    new = list[Path]()
    try:
        store = store_options(answers.get("store", "sqlite"))
        instances: dict[str, dict[str, Any]] = {section: {} for section in chosen}
        for section, proposals in chosen.items():
            for name, each in proposals.items():
                options = None if each.options is None else each.options(answers)
                if options or (options is not None and section == "collectors"):  # else the transform was declined
                    instances[section][name] = {"kind": name, **options}
        labels: dict[str, str] = {}
        for each in chosen["collectors"].values():
            labels = {**({} if each.labels is None else each.labels(answers)), **labels}
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    try:
        state_dir = None if file.parent.name == FRAGMENTS.name else str(default_state_dir(os.environ, os.getuid()))
    except KeyError:
        state_dir = None
    sections: dict[str, Any] = {"state_dir": state_dir, "labels": labels, "store": store, **instances}
    values = {name: _with_secrets(section, file, new) for name, section in sections.items() if section}
    above: dict[OptionPath, str] = {
        ("state_dir",): "The daemon's state folder. Set here, it is the same for every user who runs a command.",
        ("labels",): "The labels that the page, reports and plugins call user, group and site: auditord manual labels.",
    }
    for section, proposals in chosen.items():
        for name, each in proposals.items():
            above[section, name] = each.found
            above.update({(section, name, option): text for option, text in each.comments.items()})
    head = _HEAD.format(store=f"{store['url']}" if store else "an SQLite file in state_dir")
    if found.postgresql is not None and not store:
        steps = "".join(f"#   {line}\n" for line in (*found.postgresql.steps, "auditord database migrate"))
        head += f"# To keep records in the PostgreSQL of this host instead:\n{steps}"
        head += f"# store:\n#   url: {found.postgresql.url}\n"
    return head + (to_yaml(values, Remarks(above=above)) if values else ""), new


def _with_secrets(value: Any, file: Path, new: list[Path]) -> Any:  # Any: what YAML holds
    if isinstance(value, NewSecret):
        new.append(file.absolute().parent / value.name)
        return f"file:{new[-1]}"
    return {key: _with_secrets(each, file, new) for key, each in value.items()} if is_section(value) else value


def write_new(path: Path, text: str, mode: int) -> bool:
    """Write a new file; return False if it exists already.

    In a folder that is closed to others, its group may read the file, independent of the umask. The packages'
    /etc/auditord is such a folder: its group is the service's.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = path.parent.stat()
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as opened:  # noqa: PTH123 its mode
            if not folder.st_mode & 0o007:
                with suppress(PermissionError):  # this user is not in the group
                    os.fchown(opened.fileno(), -1, folder.st_gid)
                    os.fchmod(opened.fileno(), folder.st_mode & 0o640)
            opened.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise _unwritable(path, error.strerror or "") from error
    return True


def _unwritable(file: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{file} cannot be written: {reason}; run it as root, or name a file with --config")


@click.command("init")
@click.option(
    "--yes", is_flag=True, help="Ask no questions: use the default for every answer that --answers does not give."
)
@click.option(
    "--answers",
    "answers_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Take the answers from a YAML file, by the names of the questions.",
)
@click.option(
    "--answer",
    "single_answers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Answer one question, such as group=account or site=KIT. Repeat it for several.",
)
def init_command(*, yes: bool, answers_file: Path | None, single_answers: Sequence[str]) -> None:
    """Write a first configuration that fits this host: the file of --config, or /etc/auditord/auditord.yml.

    Looks for batch systems, PostgreSQL, an AUDITOR, an APEL client and a Waldur agent, asks a few questions, checks
    the result, shows a dry run of the last day, and says what to do next. Never changes an existing file.
    """
    paths = config_paths()
    file = paths[-1] if paths else DEFAULT_FILE
    refuse_unfit(file)
    hooks = load_hooks([])
    host = ThisHost()
    found = look_around(host, hooks.kinds)
    for line in found.lines():
        say(f"found: {line}")
    for error in found.silent:
        say(f"warning: {error}", err=True)
    if found.silent and not found.collectors and yes:
        raise ConfigurationError(f"{found.silent[0]}; start it, or leave --yes out to go on without it")
    if not found.collectors:
        say(
            "found no batch system that an installed hook module knows: the configuration only serves the API; "
            "`auditord manual first-site` shows how to write a collector by hand"
        )
    single = dict(split_pair(each, "--answer", "NAME=VALUE") for each in single_answers)
    given = {**read_answers(answers_file), **single}
    answers = answers_to(found, utc_now(), given, ask=not yes)
    since = _first_day(answers["since"])
    text, new_secrets = configuration_text(found, answers, file)
    load_text(text, str(file), hooks.kinds, {"HOME": "/"})
    for secret in new_secrets:
        is_new = write_new(secret, f"{secrets.token_hex(32)}\n", 0o600)
        say(f"wrote {secret}: keep it" if is_new else f"kept {secret}, which already exists")
    if not write_new(file, text, 0o666):
        raise _unwritable(file, os.strerror(errno.EEXIST))
    say(f"wrote {file}")
    look_at_result(since)
    say("")
    say("Next:")
    is_service = not _option(file) and host.run(["systemctl", "cat", "auditord.service"]) is not None
    start = "systemctl enable --now auditord" if is_service else f"{program()} run{_option(file)}"
    for line in (*_next_steps(file, found, answers), start):
        say(f"  {line}")


init_command.params.append(config_option(f"Write this file instead of {DEFAULT_FILE}."))


def look_around(host: Host, kinds: InstalledKinds) -> Found:
    """Search a host for everything that can be proposed."""
    detected = list(proposals(kinds, host))
    silent = [each for _, _, each in detected if isinstance(each, NoAnswer)]
    every = [(section, name, each) for section, name, each in detected if not isinstance(each, NoAnswer)]
    collectors = {name: each for section, name, each in every if section == "collectors" and each.options is not None}
    imports = {name: each for _, name, each in every if each.imports}
    if (auditor := find_auditor(host)) is not None:
        imports = {AUDITOR: auditor, **imports}
    transforms = {name: each for section, name, each in every if section == "transforms"}
    return Found(collectors, imports, find_postgresql(host), transforms, silent)


def _first_day(text: str) -> datetime:
    """Return the beginning of the first day of accounting.

    Raises:
        ConfigurationError: the text is not a day.
    """
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        raise ConfigurationError(f"since: '{text}' is not a day such as 2026-11-01") from error


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
    for name in choose_collectors(found, answers):
        yield f"{program()} collect {name} --dry-run --from {answers['since']}{option} | head"


def _option(file: Path) -> str:
    return "" if file == DEFAULT_FILE or file.parent == FRAGMENTS else f" --config {file}"


_PERIOD: Final = timedelta(days=1)
_TRIAL_PATIENCE: Final = 60.0


class _FirstRecord(Terminal):
    """Notes the first record of a dry run."""

    text: str | None = None

    async def show_batch(self, batch: Batch) -> None:
        for item in batch.records[:1] if self.text is None else ():
            self.text = encode_record(item.record if isinstance(item, Produced) else item).decode()


def look_at_result(since: datetime) -> None:
    """Run doctor's checks on the new configuration, and a dry run of each collector over the last day."""
    from auditord.cli.doctor import print_findings, run_checks  # noqa: PLC0415 slow to import, needed only here

    installation = load_installation()
    say("")
    say("auditord doctor:")
    found = [each for each in run_checks(installation) if each.where != "daemon"]  # the daemon was not started yet
    print_findings(found, show_all=False)
    now = utc_now()
    window = Window(max(min(since, now - timedelta(hours=1)), now - _PERIOD), now)
    for name, config in installation.configuration.collectors.items():
        if config.enabled:
            say("")
            say(f"dry run of {name}, {window.start:%Y-%m-%d %H:%M} to {window.stop:%Y-%m-%d %H:%M} UTC:")
            run_async(_dry_run, installation, RunRequest(name, window, dry_run=True, section="collectors"))


async def _dry_run(installation: Installation, request: RunRequest) -> None:
    from auditord.supervisor import previewing  # noqa: PLC0415 slow to import, needed only here

    first = _FirstRecord()
    try:
        with anyio.fail_after(_TRIAL_PATIENCE):
            opening = previewing(installation.configuration, installation.hooks, utc_now, reads_store=False)
            async with opening as actions:
                report = await actions.run(request, first)
    except TimeoutError:
        say(f"  not finished after {_TRIAL_PATIENCE:.0f} s: try it with a later --from", err=True)
    except AuditordError as error:
        say(f"  {error}", err=True)
    else:
        say(f"  {summary(report)}")
        if first.text is not None:
            say(f"  the first record: {first.text}")
