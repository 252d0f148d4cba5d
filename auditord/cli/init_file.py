"""The configuration file that ``auditord init`` writes, and what it does with one that is there."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from auditord.cli.init_answers import Found, chosen_collectors
from auditord.cli.init_host import store_options
from auditord.config.documents import Path as OptionPath
from auditord.config.documents import is_section
from auditord.config.loading import DEFAULT_FILE, read_files
from auditord.config.model import default_state_dir
from auditord.config.printing import Remarks, to_yaml
from auditord.config.yaml_files import read_file
from auditord.errors import ConfigurationError
from auditord_hookspecs.proposals import Answers, NewSecret, Proposal

FRAGMENTS: Final = DEFAULT_FILE.parent / "conf.d"
_HEAD: Final = """\
# Made by auditord init. Every option: auditord manual options. After a change: auditord config check.
# Records are served on 127.0.0.1:8000, and kept in {store}.
"""


def refuse_a_file_that_counts(file: Path) -> None:
    """Raise if the file sets anything, or if files beside it have collectors already.

    Raises:
        ConfigurationError: it does, or it cannot be read.
    """
    if file.exists() and any(value is not None for value in read_file(file).values.values()):
        raise ConfigurationError(
            f"{file} is there already, and init changes no file that sets anything: write another one with --config, "
            f"such as {FRAGMENTS / 'site.yml'}, which is merged into {DEFAULT_FILE}"
        )
    document = read_files([file] if file.exists() else sorted((file.parent / "conf.d").glob("*.yml")))
    if document.values.get("collectors"):
        place = document.origin(("collectors",))
        raise ConfigurationError(f"{place} has collectors already, and those of {file} would be merged with them")


def refuse_a_folder_of_others(file: Path) -> None:
    """Raise, before anything is asked, if this user cannot make the file.

    Raises:
        ConfigurationError: so it is.
    """
    folder = next(each for each in file.absolute().parents if each.exists())
    if not os.access(folder, os.W_OK):
        raise _unwritable(file, os.strerror(errno.EACCES))


def configuration_text(found: Found, answers: Answers, file: Path) -> tuple[str, Sequence[Path]]:
    """The configuration as YAML with comments, and the files of secrets that it refers to.

    Raises:
        ConfigurationError: an answer makes no sense.
    """
    chosen = {"collectors": chosen_collectors(found, answers), "transforms": found.transforms}
    new = list[Path]()
    try:
        store = store_options(answers)
        instances = {
            section: {name: {"kind": name, **options} for name, options in _made(section, each, answers)}
            for section, each in chosen.items()
        }
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    sections: dict[str, Any] = {"state_dir": _state_dir(file), "store": store, **instances}
    values = {name: _with_secrets(section, file, new) for name, section in sections.items() if section}
    above: dict[OptionPath, str] = {
        ("state_dir",): "What the daemon keeps. Written here, it is the same for whoever runs a command."
    }
    for section, proposals in chosen.items():
        for name, each in proposals.items():
            above[section, name] = each.found
            above.update({(section, name, option): text for option, text in each.comments.items()})
    head = _HEAD.format(store=f"{store['url']}" if store else "an SQLite file in state_dir")
    text = to_yaml(values, Remarks(above=above)) if values else ""
    return head + "".join(_other_store(found, store)) + text, new


def _made(
    section: str, proposals: Mapping[str, Proposal], answers: Answers
) -> Iterator[tuple[str, Mapping[str, Any]]]:  # Any: options
    """The instances that the answers make; a transform without options is not wanted."""
    for name, each in proposals.items():
        if each.options is not None and ((options := each.options(answers)) or section == "collectors"):
            yield name, options


def _with_secrets(value: Any, file: Path, new: list[Path]) -> Any:  # Any: what YAML holds
    if isinstance(value, NewSecret):
        new.append(file.absolute().parent / value.name)
        return f"file:{new[-1]}"
    return {key: _with_secrets(each, file, new) for key, each in value.items()} if is_section(value) else value


def _state_dir(file: Path) -> str | None:
    """The default folder of whoever asks, written so that it is that of every other; none beside a main file."""
    try:
        return None if file.parent.name == FRAGMENTS.name else str(default_state_dir(os.environ, os.getuid()))
    except KeyError:
        return None


def _other_store(found: Found, store: Mapping[str, str]) -> Iterator[str]:
    """Comments on PostgreSQL where it is there and not used."""
    if found.postgresql is not None and not store:
        yield "# To keep them in the PostgreSQL of this host instead:\n"
        yield from (f"#   {line}\n" for line in (*found.postgresql.steps, "auditord database migrate"))
        yield f"# store:\n#   url: {found.postgresql.url}\n"


def write_configuration(file: Path, text: str) -> Path | None:
    """Write the file; returns where the one was put that was there and set nothing.

    Raises:
        ConfigurationError: it cannot be written, or one was put aside before.
    """
    aside = file.with_name(f"{file.name}.orig")
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x") as opened:
                opened.write(text)
            return None
        _replace(file, text, aside)
    except FileExistsError as error:
        raise ConfigurationError(f"{error.filename2 or error.filename} is there already: move it away") from error
    except OSError as error:
        raise _unwritable(file, error.strerror or "") from error
    return aside


def write_secret(path: Path, configuration: Path) -> bool:
    """Write a new secret for the readers of the configuration, before that; returns whether there was none.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:  # noqa: PTH123 its mode
            opened.write(f"{secrets.token_hex(32)}\n")
        if configuration.exists():  # of a package, for the service's user
            there = configuration.stat()
            os.chown(path, there.st_uid, there.st_gid)
            path.chmod(there.st_mode & 0o640)
    except FileExistsError:
        return False
    except OSError as error:
        raise _unwritable(path, error.strerror or "") from error
    return True


def _unwritable(file: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{file} cannot be written: {reason}; run it as root, or name a file with --config")


def _replace(file: Path, text: str, aside: Path) -> None:
    """Put a file in the place of another, with the same mode and owner; at no moment is there none."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text)
    shutil.copymode(file, new)
    os.chown(new, file.stat().st_uid, file.stat().st_gid)
    aside.hardlink_to(file)
    new.replace(file)
