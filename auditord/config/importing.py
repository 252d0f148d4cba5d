"""Import of other programs' configuration files that an installed kind understands."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import Error, RawConfigParser
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from auditord.config.documents import Path as OptionPath
from auditord.config.kinds import InstalledKinds
from auditord.config.shown import Remarks, to_yaml
from auditord.config.yaml_files import describe_undecodable, read_tagged_file
from auditord.errors import ConfigurationError, refusal
from auditord_hookspecs import ImportedConfig

_HEAD = "Made by auditord config import from {files}."
_AUDITOR = "AUDITOR"
_LEVEL = "logging.level"
_INI = frozenset({".cfg", ".ini"})

FileDocument: TypeAlias = Mapping[str, Any]  # Any: an operator's YAML


class _Importer(msgspec.Struct, frozen=True):
    """Translates files of one program.

    Args:
        owner: the program, for messages.
        translate: returns None for a file of another program.
        whole: whether a file configures the whole daemon instead of one instance.
    """

    owner: str
    translate: Callable[[FileDocument], ImportedConfig | None]
    whole: bool = False


class _Source(msgspec.Struct, frozen=True):
    file: Path
    imported: ImportedConfig


def import_files(files: Sequence[Path], kinds: InstalledKinds) -> str:
    """Return one configuration as YAML, with a remark on each value that is dropped or whose meaning has changed.

    Raises:
        ConfigurationError: a file cannot be read or is of no known component, or two files claim one instance.
    """
    documents: dict[Path, FileDocument] = {}
    for file in files:
        documents[file] = _read_ini(file) if file.suffix in _INI else read_tagged_file(file).values
        if not documents[file]:
            raise ConfigurationError(f"{file} sets nothing: it is empty, or contains only comments")
    sources = [_import_file(file, documents, kinds) for file in documents]
    first: dict[str, _Source] = {}
    faults: list[str] = []
    values: dict[str, Any] = {}
    for source in sources:
        for path, value in source.imported.sections.items():
            other = first.setdefault(path, source)
            if path.startswith(("collectors.", "plugins.")) and other.imported.sections[path] != value:
                faults.append(f"{path}: {other.file} and {source.file} differ: import them one by one, and rename one")
            *sections, option = path.split(".")
            section = values
            for key in sections:
                section = section.setdefault(key, {})
            section.setdefault(option, value)
    if faults:
        raise refusal(faults)
    texts = {path: text for source in reversed(sources) for path, text in source.imported.comments.items()}
    remarks: dict[OptionPath, str] = {}
    told: dict[str, str] = {}
    for path in dict.fromkeys(path for source in sources for path in source.imported.comments):
        # A repeated remark refers to the first option with the same text.
        place = told.setdefault(texts[path], path)
        remarks[tuple(path.split("."))] = texts[path] if place == path else f"see {place}"
    head = "".join(f"# {line}\n" for line in _head(sources).splitlines())
    return head + to_yaml(values, Remarks(above=remarks))


def _import_file(file: Path, documents: Mapping[Path, FileDocument], kinds: InstalledKinds) -> _Source:
    document = documents[file]
    importers = list(_importers(kinds, [other for path, other in documents.items() if path != file]))
    for importer in importers:
        try:
            imported = importer.translate(document)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # the file is not structured as expected
            raise ConfigurationError(f"{file} cannot be imported, {importer.owner} would refuse it: {error}") from error
        if imported is not None:
            if not importer.whole and _LEVEL in imported.sections:  # the daemon has a single level
                sections = {path: value for path, value in imported.sections.items() if path != _LEVEL}
                comments = {path: text for path, text in imported.comments.items() if path != _LEVEL}
                level = imported.sections[_LEVEL]
                reason = f"{level} was the level of one program; {_LEVEL} applies to the whole daemon"
                dropped = {**imported.dropped, "log_level": reason}
                imported = replace(imported, sections=sections, comments=comments, dropped=dropped)
            return _Source(file, imported)
    if unknown := _unknown_option(document, importers):
        raise ConfigurationError(
            f"{file} cannot be imported: no program that auditord replaces has an option '{unknown}'"
        )
    known = ", ".join(
        [
            *sorted(f"{kind.title}'s server" for kind in kinds.importers.values() if kind.import_config),
            *sorted(f"its {name} collector" for name, kind in kinds.collectors.items() if kind.import_config),
            *sorted(_describe_replaced(name) for name, kind in kinds.plugins.items() if kind.import_config),
        ]
    )
    raise ConfigurationError(f"{file} is not a configuration file of {known}; check the spelling of its options")


def _read_ini(path: Path) -> Mapping[str, Mapping[str, str]]:
    """Read the options of each non-empty section as text, with option names in lower case.

    Raises:
        ConfigurationError: the file cannot be read or is not an INI file; the text names the file and the line.
    """
    parser = RawConfigParser()
    try:
        parser.read_string(path.read_bytes().decode(), str(path))
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(describe_undecodable(error, str(path))) from error
    except Error as error:
        raise ConfigurationError(f"{path}: not an INI file: {' '.join(str(error).split())}") from error
    return {name: dict(parser.items(name)) for name in parser.sections() if parser.items(name)}


def _unknown_option(document: FileDocument, importers: Sequence[_Importer]) -> str | None:
    """Return an option without which some importer would recognise the file."""
    for option in document:
        others = {name: value for name, value in document.items() if name != option}
        for importer in importers:
            with suppress(AttributeError, KeyError, TypeError, ValueError):
                if importer.translate(others) is not None:
                    return option
    return None


def _importers(kinds: InstalledKinds, others: Sequence[FileDocument]) -> Iterator[_Importer]:
    for collector in kinds.collectors.values():
        if collector.import_config is not None:
            yield _Importer(_AUDITOR, collector.import_config)
    for name, plugin in kinds.plugins.items():
        if plugin.import_config is not None:
            yield _Importer(_describe_replaced(name), _with_others(plugin.import_config, others))
    for kind in kinds.importers.values():
        if kind.import_config is not None:
            yield _Importer(kind.title, _with_others(kind.import_config, others), whole=True)


def _with_others(
    translate: Callable[[FileDocument, Sequence[FileDocument]], ImportedConfig | None], others: Sequence[FileDocument]
) -> Callable[[FileDocument], ImportedConfig | None]:
    return lambda document: translate(document, others)


def _describe_replaced(plugin: str) -> str:
    return f"the program that the plugin {plugin} replaces"


def _head(sources: Sequence[_Source]) -> str:
    lines = [_HEAD.format(files=", ".join(str(source.file) for source in sources))]
    lines += dict.fromkeys(note for source in sources for note in source.imported.notes)
    for source in sources:
        options_by_reason: dict[str, list[str]] = {}
        for option, reason in source.imported.dropped.items():
            options_by_reason.setdefault(reason, []).append(option)
        lines += [f"Not imported from {source.file}:"] if options_by_reason else []
        lines += [f"  {', '.join(options)}: {reason}" for reason, options in options_by_reason.items()]
    return "\n".join(lines)
