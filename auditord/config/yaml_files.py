"""A YAML reader that neither loses nor changes values.

Scalars follow the core schema of YAML 1.2: ``NO``, ``on``, ``1:30`` and ``2024-01-01`` are text. Keys are always text.
Every value keeps its line. Repeated keys, merge keys, tags and recursion are refused, and all such faults are reported
together. These rules are our own, on top of PyYAML's parser. ruamel.yaml makes dates of ``2024-01-01``, obeys merge
keys, stops at the first fault, and would be a second YAML library beside the one of pydantic-settings.
"""

import re
from pathlib import Path as FilePath
from typing import Any

import yaml

from auditord.config.documents import Document, Origin, Path, is_section
from auditord.errors import ConfigurationError, reason_of

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+", re.ASCII)
_OCTAL_OR_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_MOST_VALUES = 100_000
"""Most values in a file. Nested anchors can make billions from a few lines."""
_TABS = re.compile(r" *\t")
_PLAIN = "plain"
_TAGS = frozenset({_PLAIN, "tag:yaml.org,2002:str", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"})


class _Loader(yaml.SafeLoader):
    """Keeps plain scalars as text. PyYAML would resolve them by YAML 1.1."""

    yaml_implicit_resolvers = {None: [(_PLAIN, re.compile(""))]}  # noqa: RUF012 PyYAML's own way to say it


def read_file(path: FilePath) -> Document:
    """Read one file.

    Raises:
        ConfigurationError: the file cannot be read or is invalid; the text names the file and each line.
    """
    return parse(_content(path), str(path))


def read_tagged_file(path: FilePath) -> Document:
    """Read a file whose mappings may have tags, as in AUDITOR's files: ``!A {b: c}`` is ``{type: A, b: c}``.

    Raises:
        ConfigurationError: as in :func:`read_file`.
    """
    return _document(_content(path), str(path), _TaggedReader(str(path)))


def parse(content: bytes | str, name: str) -> Document:
    """Read the content of a file called ``name``. An empty document is an empty mapping.

    Raises:
        ConfigurationError: the content is invalid; one line per fault, each with the line of the file.
    """
    return _document(content, name, _Reader(name))


def _content(path: FilePath) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration file {path}: {reason_of(error)}") from error


def _document(content: bytes | str, name: str, reader: "_Reader") -> Document:
    try:
        root = yaml.compose(content, Loader=_Loader)
        values: Any = None if root is None else reader.value(root, ())
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigurationError(_describe(error, name, content)) from error
    if reader.faults:
        raise ConfigurationError("\n".join(reader.faults))
    if values is None:
        return Document()
    if not is_section(values):
        raise ConfigurationError(f"{name}:1: the file must contain a mapping such as 'state_dir: /var/lib/auditord'")
    return Document(values, reader.origins)


def _describe(error: Exception, name: str, content: bytes | str) -> str:
    if isinstance(content, bytes):
        try:
            content = content.decode()
        except UnicodeDecodeError as undecodable:
            return describe_undecodable(undecodable, name)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line = error.problem_mark.line
        place = f"{name}:{line + 1}: not YAML: "
        if _TABS.match("".join(content.split("\n")[line : line + 1])) or "'\\t'" in str(error.problem):
            return f"{place}a tab is not allowed here: use spaces"
        context = f" ({error.context})" if error.context else ""
        remedy = "; check the indentation of this line" if "<block end>" in str(error.problem) else ""
        return f"{place}{error.problem}{context}{remedy}"
    return f"{name}: not YAML: {' '.join(str(error).split())}"


def describe_undecodable(error: UnicodeDecodeError, name: str) -> str:
    """Return the text about a file that is not UTF-8, with the line."""
    line = error.object[: error.start].count(b"\n") + 1
    return (
        f"{name}:{line}: not UTF-8: the byte {error.object[error.start]:#x} is from another encoding, such as Latin-1: "
        f"save the file as UTF-8, for example with: iconv -f latin1 -t utf-8"
    )


class _Reader:
    """Converts the nodes of a file to values, and collects origins and faults."""

    def __init__(self, name: str) -> None:
        self.origins: dict[Path, Origin] = {}
        self.faults: list[str] = []
        self._name = name
        self._open: list[yaml.Node] = []
        self._values = 0

    def value(self, node: yaml.Node, path: Path) -> Any:  # Any: what YAML holds
        """Return the value of a node, and note its origin unless the origin of its key is known.

        Raises:
            ConfigurationError: there are too many values.
        """
        self._values += 1
        if self._values > _MOST_VALUES:
            raise ConfigurationError(f"{self._origin(node)}: more than {_MOST_VALUES:,} values: use fewer anchors")
        self.origins.setdefault(path, self._origin(node))
        if any(node is enclosing for enclosing in self._open):
            return self._fault(node, "an anchor refers to a value that contains it")
        self._open.append(node)
        value = self._value(node, path)
        self._open.pop()
        return value

    def _value(self, node: yaml.Node, path: Path) -> Any:  # Any: what YAML holds
        if node.tag not in _TAGS:
            return self._fault(node, f"the tag {node.tag} is not supported")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return _plain(node.value) if node.tag == _PLAIN else node.value

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._fault(key_node, "a key must be plain text")
                continue
            if key_node.tag == _PLAIN and key_node.value == "<<":
                self._fault(key_node, "merge keys (<<) do not exist in YAML 1.2: write the options out")
                continue
            key = str(key_node.value)
            if key in mapping:
                first = self.origins[(*path, key)].line
                self._fault(key_node, f"the key '{key}' is repeated (first on line {first}): keep one")
                continue
            self.origins[(*path, key)] = self._origin(key_node)
            mapping[key] = self.value(value_node, (*path, key))
        return mapping

    def _fault(self, node: yaml.Node, text: str) -> Any:  # Any: in place of a value
        self.faults.append(f"{self._origin(node)}: {text}")

    def _origin(self, node: yaml.Node) -> Origin:
        return Origin(self._name, node.start_mark.line + 1)


class _TaggedReader(_Reader):
    """Uses the tag of a mapping as its ``type``, unless it has one."""

    def _value(self, node: yaml.Node, path: Path) -> Any:  # Any: what YAML holds
        if isinstance(node, yaml.MappingNode) and node.tag.startswith("!"):
            return {"type": node.tag[1:], **self._mapping(node, path)}
        return super()._value(node, path)


def _plain(text: str) -> str | int | float | bool | None:
    """Return a plain scalar by the core schema."""
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OCTAL_OR_HEX.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text
