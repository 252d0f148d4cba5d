"""Bring AUDITOR's configuration files in: the server's, and those of the collectors and plugins that a kind knows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import Error, RawConfigParser
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from auditord.config.auditor import import_server_config
from auditord.config.documents import Path as OptionPath
from auditord.config.documents import is_list, is_section
from auditord.config.kinds import InstalledKinds
from auditord.config.listen import stands_for_itself
from auditord.config.printing import Remarks, to_yaml
from auditord.config.yaml_files import read_tagged_file
from auditord.errors import ConfigurationError, refusal
from auditord_hookspecs import ImportedConfig

_HEAD = "Made by auditord config import from {files}."
_AUDITOR = "AUDITOR"
_NO_ENVIRONMENT = "AUDITOR's environment variables were not looked at."
_DIFFERENT = (
    "Whatever the configuration: a query has at most 250 conditions (AUDITOR: 500), a record has at most 2 MiB, and",
    "pages of other servers (a foreign Origin) are answered 403. All differences: auditord manual from-auditor",
)
_LEVEL = "logging.level"
_INI = frozenset({".cfg", ".ini"})

Importer: TypeAlias = Callable[[Mapping[str, Any]], ImportedConfig | None]
"""Translates a file, or knows that it is another's."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A file and what it became.

    Args:
        server: whether the file is that of AUDITOR's server.
        servers: hosts of that server, which a client's file names.
    """

    file: Path
    imported: ImportedConfig
    server: bool = False
    servers: Sequence[str] = ()


def import_files(files: Sequence[Path], kinds: InstalledKinds) -> str:
    """One configuration, as YAML with a remark on every value that means something else and on all that is dropped.

    Raises:
        ConfigurationError: a file cannot be read or is of no known component, or two files claim one instance.
    """
    sources = [_import_file(file, kinds) for file in files]
    _refuse_collisions(sources)
    values: dict[str, Any] = {}
    for source in sources:
        for path, value in source.imported.sections.items():
            _put(values, _split(path), value)
    if "hosts" in values.get("api", {}):
        values["api"]["hosts"] = _aliases(sources)
    head = "".join(f"# {line}\n" for line in _head(sources).splitlines())
    return head + to_yaml(values, Remarks(above=_remarks(sources)))


def _import_file(file: Path, kinds: InstalledKinds) -> _Source:
    document = _read_ini(file) if file.suffix in _INI else read_tagged_file(file).values
    if not document:
        raise ConfigurationError(f"{file} sets nothing: it is empty, or all of it is comments")
    for owner, importer in _importers(kinds):
        try:
            imported = importer(document)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # the file has another shape than it should
            raise ConfigurationError(f"{file} cannot be imported, {owner} would refuse it: {error}") from error
        if imported is not None:
            if importer is import_server_config:
                return _Source(file, imported, server=True)
            return _Source(file, _without_level(imported), servers=_servers(document))
    if unknown := _unknown_option(document, kinds):
        raise ConfigurationError(
            f"{file} cannot be imported: no program that auditord replaces has an option '{unknown}'"
        )
    known = ", ".join(
        [
            "AUDITOR's server",
            *sorted(f"its {name} collector" for name, kind in kinds.collectors.items() if kind.import_config),
            *sorted(_replaced(name) for name, kind in kinds.plugins.items() if kind.import_config),
        ]
    )
    raise ConfigurationError(f"{file} is not a configuration file of {known}; are all its options spelt right?")


def _servers(document: Mapping[str, Any]) -> Sequence[str]:
    """The hosts of AUDITOR's server in the file of one of its clients."""
    section = document.get("auditor")
    options = section if is_section(section) else document
    found = [options.get(name) for name in ("addr", "ip", "host", "hosts")]
    return [str(host) for each in found if each for host in (each if is_list(each) else [each])]


def _aliases(sources: Sequence[_Source]) -> Sequence[str]:
    """The names for ``api.hosts``: those under which clients ask, if somebody else could give them to this host."""
    names = {host.lower() for source in sources for host in source.servers}
    return sorted(name for name in names if not stands_for_itself(name))


def _read_ini(path: Path) -> Mapping[str, Mapping[str, str]]:
    """The options of each section that has some, as text; names of options in small letters.

    Raises:
        ConfigurationError: it cannot be read or is no INI file; the text names the file and the line.
    """
    parser = RawConfigParser()
    try:
        parser.read_string(path.read_text(), str(path))
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except (Error, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not an INI file: {' '.join(str(error).split())}") from error
    return {name: dict(parser.items(name)) for name in parser.sections() if parser.items(name)}


def _unknown_option(document: Mapping[str, Any], kinds: InstalledKinds) -> str | None:
    """The one option without which the file would be known."""
    for option in document:
        others = {name: value for name, value in document.items() if name != option}
        for _, importer in _importers(kinds):
            with suppress(AttributeError, KeyError, TypeError, ValueError):
                if importer(others) is not None:
                    return option
    return None


def _importers(kinds: InstalledKinds) -> Iterator[tuple[str, Importer]]:
    """Importable files, each with the name of the program whose files they are."""
    for collector in kinds.collectors.values():
        if collector.import_config is not None:
            yield _AUDITOR, collector.import_config
    for name, plugin in kinds.plugins.items():
        if plugin.import_config is not None:
            yield _replaced(name), plugin.import_config
    yield _AUDITOR, import_server_config


def _replaced(plugin: str) -> str:
    return f"the program that the plugin {plugin} replaces"


def _without_level(imported: ImportedConfig) -> ImportedConfig:
    """The document without the log level of one component: the daemon has one for everything in it."""
    if _LEVEL not in imported.sections:
        return imported
    sections = {path: value for path, value in imported.sections.items() if path != _LEVEL}
    comments = {path: text for path, text in imported.comments.items() if path != _LEVEL}
    reason = f"{imported.sections[_LEVEL]} was that of one program; {_LEVEL} is that of the whole daemon"
    return replace(imported, sections=sections, comments=comments, dropped={**imported.dropped, "log_level": reason})


def _refuse_collisions(sources: Sequence[_Source]) -> None:
    """Raise if two files say one option of an instance differently."""
    first: dict[str, _Source] = {}
    faults: list[str] = []
    for source in sources:
        for path, value in source.imported.sections.items():
            other = first.setdefault(path, source)
            if path.startswith(("collectors.", "plugins.")) and other.imported.sections[path] != value:
                faults.append(f"{path}: {other.file} and {source.file} differ: import them one by one, rename one")
    if faults:
        raise refusal(faults)


def _split(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
    values.setdefault(path[-1], value)


def _remarks(sources: Sequence[_Source]) -> Mapping[OptionPath, str]:
    """The remarks by path; of the same text, all but the first one name the option that has it."""
    texts = {path: text for source in reversed(sources) for path, text in source.imported.comments.items()}
    first: dict[str, str] = {}
    for path in (path for source in sources for path in source.imported.comments):
        first.setdefault(texts[path], path)
    return {_split(path): text if first[text] == path else f"as {first[text]}" for path, text in texts.items()}


def _head(sources: Sequence[_Source]) -> str:
    lines = [_HEAD.format(files=", ".join(str(source.file) for source in sources))]
    if any(source.imported.origin == _AUDITOR for source in sources):
        lines.append(_NO_ENVIRONMENT)
    if any(source.server for source in sources):
        lines += _DIFFERENT
    for source in sources:
        lines += [f"Not taken from {source.file}:"] if source.imported.dropped else []
        lines += [f"  {', '.join(options)}: {reason}" for reason, options in _by_reason(source).items()]
    return "\n".join(lines)


def _by_reason(source: _Source) -> Mapping[str, Sequence[str]]:
    """The dropped options, once for each reason."""
    found: dict[str, list[str]] = {}
    for option, reason in source.imported.dropped.items():
        found.setdefault(reason, []).append(option)
    return found
