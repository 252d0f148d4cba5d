"""The configuration file that ``auditord init`` writes, and what it does with one that is there."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from auditord.cli.init_answers import Found, chosen_collectors
from auditord.cli.init_host import store_options
from auditord.config.documents import Path as OptionPath
from auditord.config.loading import DEFAULT_FILE, read_files
from auditord.config.printing import Remarks, to_yaml
from auditord.config.yaml_files import read_file
from auditord.errors import ConfigurationError
from auditord_hookspecs.proposals import Answers

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
    document = read_files([file] if file.exists() else _fragments_of(file))
    if document.values.get("collectors"):
        place = document.origin(("collectors",))
        raise ConfigurationError(f"{place} has collectors already, and those of {file} would be merged with them")


def _fragments_of(file: Path) -> list[Path]:
    return sorted((file.parent / "conf.d").glob("*.yml"))


def configuration_text(found: Found, answers: Answers) -> str:
    """The configuration as YAML with comments.

    Raises:
        ConfigurationError: an answer makes no sense.
    """
    chosen = chosen_collectors(found, answers)
    try:
        store = store_options(answers)
        collectors = {
            name: {"kind": name, **each.options(answers)} for name, each in chosen.items() if each.options is not None
        }
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    sections: dict[str, Any] = {"store": store, "collectors": collectors}
    values = {name: section for name, section in sections.items() if section}
    above: dict[OptionPath, str] = {
        ("collectors", name, option): text for name, each in chosen.items() for option, text in each.comments.items()
    }
    above.update({("collectors", name): each.found for name, each in chosen.items()})
    head = _HEAD.format(store=f"{store['url']}" if store else "an SQLite file in state_dir")
    return head + "".join(_other_store(found, store)) + (to_yaml(values, Remarks(above=above)) if values else "")


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
        raise ConfigurationError(
            f"{file} cannot be written: {error.strerror}; run it as root, or name a file with --config"
        ) from error
    return aside


def _replace(file: Path, text: str, aside: Path) -> None:
    """Put a file in the place of another, with the same mode and owner; at no moment is there none."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text)
    shutil.copymode(file, new)
    os.chown(new, file.stat().st_uid, file.stat().st_gid)
    aside.hardlink_to(file)
    new.replace(file)
