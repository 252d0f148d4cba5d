"""Write the reference of all options of the host and of the installed kinds as Markdown, from their models."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from auditord.config.documents import is_list, is_section
from auditord.config.faults import json_schema
from auditord.config.kinds import configuration_model, instance_models
from auditord.config.model import INSTANCE_SECTIONS
from auditord.config.sizes import format_size
from auditord.hooks.loading import survey
from auditord_hookspecs.config import format_duration
from auditord_hookspecs.kinds import AnyKind

Schema: TypeAlias = Mapping[str, Any]  # Any: JSON

_BEGINNING: Final = """\
# Every option of the configuration

The daemon reads `/etc/auditord/auditord.yml`, or the files that `--config` or else `AUDITORD_CONFIG` names, and
merges the files `conf.d/*.yml` beside it, in the order of their names; the environment overrides them all:
`AUDITORD_COLLECTORS__SLURM__INTERVAL=10m` (lists as JSON). Without any configuration, it keeps records in an
SQLite file and serves them on 127.0.0.1:8000.

Durations: `30s`, `5m`, `1h30m`, `1d`. Sizes: `64MiB`. Secrets: `file:/path`, `env:NAME`, `credential:name` (systemd).
After a change: `auditord config check`, `auditord config show`. In a name, `[]` stands for each member of a list,
`<name>` for a name of your choice.
"""

_TYPES: Final = {
    "string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "object": "mapping",
    "array": "list", "null": "null",
}  # fmt: skip
_FORMATS: Final = {
    "path": "path", "password": "secret", "regex": "regular expression", "date-time": "instant", "date": "date"
}  # fmt: skip


def markdown() -> str:
    """Return the whole reference, for ``auditord manual options``."""
    kinds = survey(()).hooks.kinds.sections()
    root = json_schema(configuration_model(instance_models(survey(()).hooks.kinds)))
    return "\n".join([_BEGINNING, *_Writer(root).lines(kinds)]) + "\n"


class _Writer:
    def __init__(self, root: Schema) -> None:
        self._root = root
        uses = Counter(re.findall(r'"#/\$defs/(\w+)"', json.dumps([root["$defs"], root["properties"]])))
        kinds = {name for section in INSTANCE_SECTIONS for name in self._kinds(section).values()}
        self._shared = sorted(name for name, count in uses.items() if count > 1 and name not in kinds)

    def _kinds(self, section: str) -> Mapping[str, str]:
        """Return the definitions of a section's kinds."""
        found = re.findall(r'"#/\$defs/(\w+)"', json.dumps(self._root["properties"][section].get("patternProperties")))
        named = {self._root["$defs"][name]["properties"]["kind"]["const"]: name for name in found if "kind" in
                 self._root["$defs"][name]["properties"]}  # fmt: skip
        return dict(sorted(named.items()))

    def lines(self, kinds: Mapping[str, Mapping[str, AnyKind]]) -> Iterator[str]:
        yield from ("## Of the daemon", "", *self._properties(self._root, ""), "")
        for section in INSTANCE_SECTIONS:
            for name, definition in self._kinds(section).items():
                schema = self._root["$defs"][definition]
                yield from (f"## {section}: kind {name}", "", *_paragraphs(schema), "")
                kind = kinds[section][name]
                periods = {name: getattr(kind, name, None) for name in ("interval", "timeout")}
                defaults = {name: format_duration(each) for name, each in periods.items() if each is not None}
                yield from (*self._properties(schema, "", defaults), "")
        yield from ("## Parts of several options", "")
        for name in self._shared:
            schema = self._root["$defs"][name]
            values = [f"- {_code(value)}" for value in schema.get("enum", ())]
            yield from (f"### {_title(name)}", "", *_paragraphs(schema), "", *values, *self._properties(schema, ""), "")

    def _properties(self, schema: Schema, prefix: str, defaults: Schema | None = None) -> Iterator[str]:
        required = schema.get("required", ())
        for name, option in schema.get("properties", {}).items():
            path = f"{prefix}{name}"
            if name == "kind" or (schema is self._root and name in INSTANCE_SECTIONS):
                continue
            default = (defaults or {}).get(name, option.get("default"))
            needed = name in required
            described = option.get("description")
            if not described and (reference := option.get("$ref")):
                shared = self._root["$defs"][reference.rpartition("/")[2]]
                described = shared.get("description", "").partition("\n\n")[0]
            text = " ".join((described or "").replace("``", "`").split())
            words = [text if text.endswith(".") else f"{text}."] if text else []
            kind = " or ".join(dict.fromkeys(self._types(option)))
            words.append(f"{kind[:1].upper()}{kind[1:]}{'; required' if needed else _default(option, default)}.")
            yield f"- `{path}`: {' '.join(words)}"
            for below, at in self._within(option, path):
                yield from self._properties(below, f"{at}.")

    def _types(self, option: Schema) -> Iterator[str]:
        """Yield the words for the type of a value; ``null`` only means that the option is not required."""
        if reference := option.get("$ref"):
            name = reference.rpartition("/")[2]
            schema = self._root["$defs"][name]
            own = _choice(schema) if "enum" in schema else "section"
            yield f"[{_title(name)}](#{_title(name).lower()})" if name in self._shared else own
        elif alternatives := option.get("anyOf") or option.get("oneOf") or option.get("allOf"):
            for alternative in alternatives:
                yield from (each for each in self._types(alternative) if each != "null")
        elif "enum" in option or "const" in option:
            yield _choice(option)
        elif option.get("type") == "array":
            inner = " or ".join(dict.fromkeys(self._types(option.get("items", {}))))
            yield f"list of {inner}" if inner else "list"
        elif examples := option.get("examples"):
            known = {"PT5M": "duration", "64MiB": "size"}
            yield known.get(examples[-1]) or f"such as {', '.join(map(_code, examples))}"
        else:
            kind = option.get("type")
            yield _FORMATS.get(option.get("format", ""), _TYPES.get(str(kind), "value"))

    def _within(self, option: Schema, path: str) -> Iterator[tuple[Schema, str]]:
        """Yield the sections in an option's value, except shared parts."""
        if (reference := option.get("$ref")) and (name := reference.rpartition("/")[2]) not in self._shared:
            yield self._root["$defs"][name], path
        for alternative in option.get("anyOf") or option.get("oneOf") or option.get("allOf") or ():
            yield from self._within(alternative, path)
        if "items" in option:
            yield from self._within(option["items"], f"{path}[]")
        for named in (*option.get("patternProperties", {}).values(), option.get("additionalProperties")):
            if is_section(named):
                yield from self._within(named, f"{path}.<name>")


def _paragraphs(schema: Schema) -> list[str]:
    text = schema.get("description", "").replace("``", "`")
    return [re.sub(r":(?:class|func|data|mod):`([^`]*)`", r"`\1`", text)]


def _choice(schema: Schema) -> str:
    return ", ".join(_code(each) for each in schema.get("enum", [schema.get("const")]))


def _code(value: Any) -> str:  # Any: JSON
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _title(definition: str) -> str:
    """Return the name of a definition without the module that makes it unique."""
    return definition.rpartition("__")[2]


def _default(option: Schema, default: Any) -> str:  # Any: JSON
    """Return the words for a default; empty if there is none, or if it follows from the members of a section."""
    if default is None or default in ([], "") or is_section(default):
        return ""
    if is_list(default):
        default = [  # members without their empty parts
            {name: part for name, part in each.items() if part not in (None, [], False, "1")}
            if is_section(each)
            else each
            for each in default
        ]
    if option.get("examples") == ["64MiB"]:
        default = format_size(default)
    return f"; default {_code(default)}"
