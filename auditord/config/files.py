"""Files named in a configuration: missing files, and certificates."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from pydantic import BaseModel, SecretStr

from auditord.config.documents import Path as OptionPath
from auditord.config.faults import join_path
from auditord.config.listen import TcpListen
from auditord.config.model import INSTANCE_SECTIONS, Configuration
from auditord_hookspecs import Section
from auditord_hookspecs.sources import TlsFiles

MADE_LATER: Final = frozenset({"state_dir", "folder", "results", "spool", "path"})
"""Options whose files or folders are created later, by the daemon or others."""


def missing_files(configuration: Configuration, is_readable: Callable[[Path], bool]) -> list[str]:
    """Return a line for each unreadable file, with its option. Disabled instances are left out."""
    return [
        f"{join_path(path)}: {value} does not exist, or this user may not read it"
        for path, value in _values_in(configuration)
        if isinstance(value, Path) and path[-1] not in MADE_LATER and not is_readable(value)
    ]


def _values_in(section: Any, path: OptionPath = ()) -> Iterator[tuple[OptionPath, Any]]:  # Any: plain values, models
    """Yield all values in a section at any depth, including sections and lists, with their option paths."""
    members: Mapping[Any, Any] = {}  # by option or position
    if isinstance(section, BaseModel):
        if getattr(section, "enabled", True):
            members = {name: getattr(section, name) for name in type(section).model_fields}
    elif isinstance(section, msgspec.Struct):
        members = msgspec.structs.asdict(section)
    elif is_dataclass(section):
        members = {each.name: getattr(section, each.name) for each in fields(section)}
    elif isinstance(section, Mapping):
        members = cast("Mapping[str, Any]", section)
    elif isinstance(section, tuple | list):
        members = dict(enumerate(cast("Sequence[Any]", section)))
    for key, value in members.items():
        yield (*path, key), value
        yield from _values_in(value, (*path, key))


def certificate_files(configuration: Configuration) -> list[Path]:
    """Return the certificate files of the daemon's addresses and of its enabled instances, each once.

    The system's CAs are not included, nor are certificates that a kind configures by other means than ``TlsFiles``.
    """
    found = [
        file
        for listen in configuration.api.listen
        if configuration.api.enabled and isinstance(listen, TcpListen) and listen.tls is not None
        for file in (listen.tls.certificate, listen.tls.client_ca)
    ]
    for section in INSTANCE_SECTIONS:
        for config in getattr(configuration, section).values():
            if config.enabled:
                found += [file for tls in tls_files(config) for file in (tls.certificate, tls.ca)]
    return list(dict.fromkeys(file for file in found if file is not None))


def secrets_in(section: Any) -> Iterator[tuple[OptionPath, SecretStr]]:  # Any: plain values, models
    """Yield the secrets in a section at any depth, with their option paths."""
    return ((path, value) for path, value in _values_in(section) if isinstance(value, SecretStr))


def tls_files(section: Section) -> Iterator[TlsFiles]:
    """Yield the TLS options in a section at any depth."""
    return (value for _, value in _values_in(section) if isinstance(value, TlsFiles))
