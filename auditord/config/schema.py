"""The JSON schema of the configuration: for editors, and to say what is allowed where something is wrong."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from auditord.config.documents import Path, is_section
from auditord.config.model import Configuration
from auditord_hookspecs.config import format_duration

Schema = Mapping[str, Any]


class _Lenient(GenerateJsonSchema):
    """Durations as people write them; an option of a type that JSON cannot describe is described as anything."""

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Say nothing: a reader of the schema cannot change the kind."""

    def encode_default(self, dft: Any) -> Any:
        """A default as people write it."""
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:  # noqa: ARG002
        return {}


def json_schema(model: type[Configuration]) -> dict[str, Any]:
    """The schema of a configuration with the installed kinds."""
    schema = model.model_json_schema(schema_generator=_Lenient)
    schema["required"] = []  # the host knows a default for what the model requires
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "auditord", **schema}


def options_at(schema: Schema, values: Any, path: Path) -> list[str]:
    """The options that a section may hold.

    Args:
        schema: what :func:`json_schema` made.
        values: what was written; the kind of an instance decides which options it has.
        path: the section.
    """
    sections: list[Schema] = [schema]
    for key in path:
        sections = [inner for each in sections for inner in _inner(schema, each, values, key)]
        values = _step(values, key)
    found = [each for section in sections for each in _variants(schema, section, values)]
    return sorted({name for section in found for name in section.get("properties", {})})


def places_of(schema: Schema, name: str) -> list[str]:
    """The places of options of a name, such as ``api.listen[].tls``; those of hook instances are left out."""
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


def _inner(root: Schema, section: Schema, values: Any, key: str | int) -> Iterator[Schema]:
    for variant in _variants(root, section, values):
        if isinstance(key, int):
            each = variant.get("items")
        else:
            each = variant.get("properties", {}).get(key) or _named(variant)
        if is_section(each):
            yield each


def _named(variant: Schema) -> Any:
    patterns = variant.get("patternProperties", {})
    return next(iter(patterns.values()), variant.get("additionalProperties"))


def _variants(root: Schema, section: Schema, values: Any) -> Iterator[Schema]:
    """The section itself, or each alternative of a union that fits what was written."""
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
