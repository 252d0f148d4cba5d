"""Merging of the configuration files into one document, and a shortcut to state folder and store without models.

Commands that need only the state folder and the record store use :func:`plain_place`. Importing pydantic and the models
would be half of their run time.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from auditord.config.documents import (
    ENVIRONMENT_PREFIX,
    FILES_VARIABLE,
    FOREIGN_PREFIXES,
    SECTIONS,
    Document,
    is_section,
)
from auditord.config.store_url import records_url, sqlite_path
from auditord.config.yaml_files import read_file
from auditord.errors import ConfigurationError, reason_of, refusal

if TYPE_CHECKING:
    from auditord.config.model import StoreSection

DEFAULT_FILE: Final = Path("/etc/auditord/auditord.yml")

SERVICE_FOLDER: Final = Path("/var/lib/auditord")
"""The default state folder of root, and of the service's user, who owns it."""

CONTROL_FILE: Final = "control.sock"
"""Socket in the state folder on which the daemon answers commands of its host."""

_SUFFIXES: Final = frozenset({".yml", ".yaml"})


class Place(NamedTuple):
    """The state folder, and the record store or its URL."""

    state_dir: Path
    store: "StoreSection | str"


def plain_place(paths: Sequence[Path] | None, environ: Mapping[str, str], needed: Collection[str] = ()) -> Place | None:
    """Return the state folder and the URL of a SQLite store from the files (the default ones if ``paths`` is None).

    Returns:
        None if the models are needed: because of environment variables, an unknown section, a section in ``needed``, a
        fault, or a store with more options than the URL of a SQLite file. Other sections' options are not checked.
    """
    if has_options(environ):
        return None
    values = with_state_dir(read_files(paths).values, environ)
    if not values.keys().isdisjoint(needed):
        return None
    folder, store = Path(str(values["state_dir"])), values.get("store", {})
    if not folder.is_absolute() or not values.keys() <= SECTIONS or not is_section(store) or store.keys() - {"url"}:
        return None
    url = str(store.get("url", records_url(folder)))
    try:
        sqlite_path(url)
    except ValueError:
        return None
    return Place(folder, url)


def has_options(environ: Mapping[str, str]) -> bool:
    """Return whether environment variables may set options."""
    return any(name.startswith((ENVIRONMENT_PREFIX, *FOREIGN_PREFIXES)) for name in environ if name != FILES_VARIABLE)


def with_state_dir(values: Mapping[str, Any], environ: Mapping[str, str]) -> Mapping[str, Any]:
    """Add the default state folder unless one is set.

    Raises:
        ConfigurationError: the user is not root and has no ``HOME``.
    """
    if "state_dir" in values:
        return values
    try:
        return {"state_dir": default_state_dir(environ, os.getuid()), **values}
    except KeyError as error:
        raise refusal(["state_dir: this option is required, because the environment has no HOME"]) from error


def default_state_dir(environ: Mapping[str, str], uid: int, service: Path = SERVICE_FOLDER) -> Path:
    """Return the default folder for the daemon's files. systemd's ``StateDirectory=`` takes precedence.

    Raises:
        KeyError: the user is neither root nor the service's user, and has no ``HOME``.
    """
    if given := environ.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])  # systemd separates several folders by colons
    with suppress(OSError):
        # "runuser -u auditord -- auditord …" keeps the HOME of root, and must find the files of the service.
        if uid == 0 or service.stat().st_uid == uid:
            return service
    return Path(environ.get("XDG_STATE_HOME") or f"{environ['HOME']}/.local/state", "auditord")


def read_files(paths: Sequence[Path] | None) -> Document:
    """Read each file and then ``conf.d/*.yml`` beside it, sorted by name. Later values take precedence.

    Raises:
        ConfigurationError: files cannot be read; the error lists all of them.
    """
    document, faults = Document(), list[str]()
    for path in configuration_files(paths):
        try:
            read = read_file(path)
        except ConfigurationError as error:
            faults += str(error).splitlines()
            continue
        # An empty section, such as ``collectors:`` with only comments, must override nothing.
        values = {key: value for key, value in read.values.items() if value is not None}
        origins = {place: origin for place, origin in read.origins.items() if place and place[0] in values}
        document = document.merge(Document(values, origins))
    if faults:
        raise refusal(faults)
    return document


def configuration_files(paths: Sequence[Path] | None) -> list[Path]:
    """Return the files that are read, in order; None stands for the default ones.

    Raises:
        ConfigurationError: a folder cannot be read.
    """
    try:
        if paths is None:
            return [*([DEFAULT_FILE] if DEFAULT_FILE.exists() else []), *_fragments(DEFAULT_FILE)]
        files = [each for path in paths for each in (path, *_fragments(path))]
        return list(dict.fromkeys(reversed(files)))[::-1]  # a shared conf.d is read once, after all files
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration {error.filename}: {reason_of(error)}") from error


def _fragments(path: Path) -> list[Path]:
    """Return the files in ``conf.d`` beside a file, without leftovers of editors and package managers."""
    folder = path.parent / "conf.d"
    if not folder.is_dir():
        return []
    return sorted(each for each in folder.iterdir() if each.suffix in _SUFFIXES and not each.name.startswith("."))
