"""Messages about configuration faults, with place, option and allowed values, and the JSON schema."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, cast

import msgspec
from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails

from auditord.config.documents import DEFAULT, Document, Path, is_list, is_section
from auditord.config.kinds import InstanceModels, configuration_model
from auditord.config.model import INSTANCE_NAME, INSTANCE_SECTIONS, Configuration
from auditord_hookspecs.config import format_duration

Schema = Mapping[str, Any]


class _Lenient(GenerateJsonSchema):
    """Writes durations as people do, and allows any value for types that JSON cannot describe."""

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Ignore warnings, since a reader of the schema cannot change the kind."""

    def encode_default(self, dft: Any) -> Any:
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:  # noqa: ARG002
        return {}


def json_schema(model: type[Configuration]) -> dict[str, Any]:
    """Return the schema of a configuration with the installed kinds."""
    schema = model.model_json_schema(schema_generator=_Lenient)
    schema["required"] = []  # the host has a default for each option that the model requires
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "auditord", **schema}


def options_at(schema: Schema, values: Any, path: Path) -> list[str]:
    """Return the options that the section at ``path`` may have, given the result of :func:`json_schema`.

    The kind of an instance in the written values decides its options.
    """
    found = list(_variants(schema, schema, values))
    for key in path:
        below = _step(values, key)
        inner: list[Schema] = []
        for variant in found:
            members = [*variant.get("patternProperties", {}).values(), variant.get("additionalProperties")]
            named = variant.get("properties", {}).get(key) or members[0]
            section = variant.get("items") if isinstance(key, int) else named
            inner += _variants(schema, section, below) if is_section(section) else []
        found, values = inner, below
    return sorted({name for section in found for name in section.get("properties", {})})


def places_of(schema: Schema, name: str) -> list[str]:
    """Return the places of options with a name, such as ``api.listen[].tls``, without those of instances."""
    return sorted(dict.fromkeys(_places(schema, schema, name, "")))


def _places(root: Schema, section: Schema, name: str, path: str) -> Iterator[str]:
    for variant in _variants(root, section, None):
        for option, inner in variant.get("properties", {}).items():
            if option == name:
                yield f"{path}{option}"
            yield from _places(root, inner, name, f"{path}{option}.")
        if is_section(each := variant.get("items")):
            yield from _places(root, each, name, f"{path.removesuffix('.')}[].")


def _step(values: Any, key: str | int) -> Any:
    try:
        return values[key]
    except (KeyError, IndexError, TypeError):
        return None


def _variants(root: Schema, section: Schema, values: Any) -> Iterator[Schema]:
    """Yield the section itself, or each alternative of a union that matches the written values."""
    if reference := section.get("$ref"):
        yield from _variants(root, root["$defs"][reference.rpartition("/")[2]], values)
    elif mapping := section.get("discriminator", {}).get("mapping"):
        chosen = mapping.get(_step(values, section["discriminator"]["propertyName"]))
        if chosen:
            yield from _variants(root, {"$ref": chosen}, values)
    elif alternatives := section.get("anyOf") or section.get("oneOf") or section.get("allOf"):
        for alternative in alternatives:
            yield from _variants(root, alternative, values)
    else:
        yield section


_QUOTED = frozenset(
    {"bool_parsing", "enum", "float_parsing", "greater_than", "greater_than_equal", "int_from_float", "int_parsing"}
    | {"less_than", "less_than_equal", "literal_error", "time_delta_parsing", "union_tag_invalid"}
)
"""Faults whose messages quote the value. Other messages might quote a secret."""

_FEW = 2
"""Most places of an option to suggest."""

_SHAPES = {
    "dict_type": "it should be a section",
    "list_type": "it should be a list",
    "model_attributes_type": "it should be a section",
    "model_type": "it should be a section",
    "tuple_type": "it should be a list",
}
"""Texts for values of a wrong type, in YAML's terms."""


def _add_zone(time: str) -> str:
    zoned = f"{time}Z" if ":" in time else f"{time}T00:00:00Z"
    return f"'{time}' has no time zone: write {zoned} for UTC"


def _explain_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        place = "" if error.pos is None else f" (at character {error.pos + 1})"
        return f"'{text}' is not a regular expression: {error.msg}{place}"
    return f"'{text}' is not a regular expression"


def _is_no(what: str) -> Callable[[str], str]:
    return lambda text: f"'{text}' is not {what}"


_EXPLAINED: Mapping[str, Callable[[str], str]] = {
    "pattern_regex": _explain_expression,
    "timezone_aware": _add_zone,
    **dict.fromkeys(("datetime_parsing", "datetime_from_date_parsing"), _is_no("a time such as 2026-11-01T00:00:00Z")),
    **dict.fromkeys(("date_parsing", "date_from_datetime_parsing"), _is_no("a day such as 2026-11-01")),
}
"""Texts for wrong times and expressions, from the value, by the type of the fault."""


def suggestion(name: str, allowed: Collection[str]) -> str:
    """Return the end of a sentence that refuses a name: the likely name and all allowed ones."""
    likely = get_close_matches(name, allowed, n=1)
    meant = f"; did you mean '{likely[0]}'?" if likely else ""
    return f"{meant} (allowed: {', '.join(sorted(allowed))})" if allowed else meant


def join_path(path: Path) -> str:
    """Return a path as people write it: ``collectors.slurm.sites[0].name``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def fault(document: Document, path: Path, text: str) -> str:
    """Return a line with the place and the text of a fault."""
    origin = document.origin(path)
    return ": ".join(part for part in ("" if origin == DEFAULT else str(origin), join_path(path), text) if part)


def describe(error: ValidationError, document: Document, models: InstanceModels) -> list[str]:
    """Return a line per fault that validation found, in the order of the files and their lines."""
    writer = _Writer(document, models, json_schema(configuration_model(models)))
    found = [(writer.path(details), details) for details in error.errors(include_url=False)]
    files = list(dict.fromkeys(origin.name for origin in (*document.origins.values(), DEFAULT)))

    def place(fault: tuple[Path, ErrorDetails]) -> tuple[int, int]:
        origin = document.origin(fault[0])
        return files.index(origin.name), origin.line or 0

    found.sort(key=place)
    faults = (writer.line(path, details) for path, details in found if not writer.is_consequence(path, details, found))
    return list(dict.fromkeys(faults))  # alternatives of a union may have equal faults


class _Writer(msgspec.Struct, frozen=True):
    """Describes faults with the written values and the allowed ones."""

    document: Document
    models: InstanceModels
    schema: Mapping[str, Any]

    def is_consequence(self, path: Path, details: ErrorDetails, found: Sequence[tuple[Path, ErrorDetails]]) -> bool:
        """Return whether a fault disappears once another one is fixed."""
        match details["type"]:
            case "missing":  # it is misspelt
                beside = [each[-1] for each, other in found if other["type"] == "extra_forbidden" and each and
                          each[:-1] == path[:-1]]  # fmt: skip
                options = options_at(self.schema, self.document.values, path[:-1])
                return any(path[-1] in get_close_matches(str(name), options, n=1) for name in beside)
            case "too_short":  # its members could not be read
                return any(len(each) > len(path) and each[: len(path)] == path for each, _ in found)
            case kind if kind in _SHAPES:  # from an alternative that does not apply
                return any(each == path and other["type"] not in _SHAPES for each, other in found)
            case _:
                return False

    def line(self, path: Path, details: ErrorDetails) -> str:
        if details["type"] in {"union_tag_invalid", "union_tag_not_found"}:
            path = (*path, "kind")
        if len(path) != 3 or path[0] not in INSTANCE_SECTIONS or path[2] != "kind":  # noqa: PLR2004
            return fault(self.document, path, self._text(details, path))
        section, instance, _ = path
        written = self.document.values[str(section)][instance].get("kind")
        installed = self.models[str(section)]
        if written is None:
            return fault(self.document, path, f"this option is required{suggestion('', installed)}")
        meant = suggestion(str(written), installed)
        remedy = "" if "did you mean" in meant else ": install a package that has it (auditord hooks lists them)"
        return fault(self.document, path, f"no installed hook module has the kind '{written}'{meant}{remedy}")

    def path(self, details: ErrorDetails) -> Path:
        """Return the error's location without names of union members and validators, which the model adds."""
        path, values = list[str | int](), self.document.values
        if not details["loc"]:
            return ()
        *enclosing, last = details["loc"]
        for depth, key in enumerate(enclosing):
            # The kind follows the instance's name if there are several kinds.
            is_kind = depth == 2 and len(self.models.get(str(details["loc"][0]), {})) > 1  # noqa: PLR2004
            if _holds(values, key) and not is_kind:
                path.append(key)
                values = cast("Any", values)[key]  # _holds has checked the key or position
        if last != "[key]" and (_holds(values, last) or details["type"] in {"missing", "extra_forbidden"}):
            path.append(last)
        return tuple(path)

    def _text(self, details: ErrorDetails, path: Path) -> str:
        context = details.get("ctx", {})
        match details["type"]:
            case "extra_forbidden":
                option, places = str(path[-1]), places_of(self.schema, str(path[-1]))
                elsewhere = f" here; there is {' and '.join(places)}" if 0 < len(places) <= _FEW else ""
                allowed = options_at(self.schema, self.document.values, path[:-1])
                return f"there is no such option{elsewhere}{suggestion(option, allowed)}"
            case "missing":
                return "this option is required"
            case "value_error":
                return str(context["error"])
            case "string_pattern_mismatch" if context.get("pattern") == INSTANCE_NAME:
                return f"'{details['input']}' is not a valid name: use lowercase letters, digits and _, a letter first"
            case kind if kind in _EXPLAINED:
                return _EXPLAINED[kind](str(details["input"]))
            case kind:
                message = _SHAPES.get(kind) or details["msg"].replace("Input", "it", 1)
                quoted = f", not '{details['input']}'" if kind in _QUOTED else ""
                remedy = "; to write it as text, put it in quotes" if kind == "string_type" else ""
                known = {each.lower(): each for each in re.findall(r"'([^']*)'", str(context.get("expected", "")))}
                likely = get_close_matches(str(details["input"]).lower(), known, n=1)
                meant = f"; did you mean '{known[likely[0]]}'?" if likely else ""
                return f"{message}{quoted}{meant}{remedy}"


def _holds(values: Any, key: str | int) -> bool:  # Any: what YAML holds
    if is_list(values):
        return isinstance(key, int) and key < len(values)
    return is_section(values) and key in values
