"""Faults of a configuration in the words of its author: the place, the option, what is allowed."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from auditord.config.documents import DEFAULT, Document, Path, is_list, is_section
from auditord.config.instances import InstanceModels, configuration_model
from auditord.config.model import INSTANCE_NAME, INSTANCE_SECTIONS
from auditord.config.schema import json_schema, options_at, places_of

_QUOTED = frozenset(
    {"bool_parsing", "enum", "float_parsing", "greater_than", "greater_than_equal", "int_from_float", "int_parsing"}
    | {"less_than", "less_than_equal", "literal_error", "time_delta_parsing", "union_tag_invalid"}
)
"""Faults whose value is quoted; the others might quote a secret."""

_FEW = 2
"""Of an option in more places than that, none is likelier than another."""

_SHAPES = {
    "dict_type": "it should be a section",
    "list_type": "it should be a list",
    "model_attributes_type": "it should be a section",
    "model_type": "it should be a section",
    "tuple_type": "it should be a list",
}
"""Faults of the shape of a value, in the words of YAML."""


def suggestion(name: str, allowed: Collection[str]) -> str:
    """The end of a sentence that refuses a name: the likely one, and all that are allowed."""
    likely = get_close_matches(name, allowed, n=1)
    meant = f"; did you mean '{likely[0]}'?" if likely else ""
    return f"{meant} (allowed: {', '.join(sorted(allowed))})" if allowed else meant


def dotted(path: Path) -> str:
    """A path as people write it: ``collectors.slurm.sites[0].name``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def fault(document: Document, path: Path, text: str) -> str:
    """One line that says where something is wrong, and what."""
    origin = document.origin(path)
    return ": ".join(part for part in ("" if origin == DEFAULT else str(origin), dotted(path), text) if part)


def describe(error: ValidationError, document: Document, models: InstanceModels) -> list[str]:
    """One line per fault that validation found, in the order of the model."""
    writer = _Writer(document, models, json_schema(configuration_model(models)))
    found = [(writer.path(details), details) for details in error.errors(include_url=False)]
    faults = (writer.line(path, details) for path, details in found if not writer.is_consequence(path, details, found))
    return list(dict.fromkeys(faults))  # the alternatives of a union may complain alike


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writer of faults: knows what was written and what would have been allowed."""

    document: Document
    models: InstanceModels
    schema: Mapping[str, Any]

    def is_consequence(self, path: Path, details: ErrorDetails, found: Sequence[tuple[Path, ErrorDetails]]) -> bool:
        """Tell a fault that is gone as soon as another one is mended."""
        match details["type"]:
            case "missing":  # it is there, misspelt
                beside = [each[-1] for each, other in found if other["type"] == "extra_forbidden" and each and
                          each[:-1] == path[:-1]]  # fmt: skip
                options = options_at(self.schema, self.document.values, path[:-1])
                return any(path[-1] in get_close_matches(str(name), options, n=1) for name in beside)
            case "too_short":  # its members could not be read
                return any(len(each) > len(path) and each[: len(path)] == path for each, _ in found)
            case kind if kind in _SHAPES:  # of an alternative that was not meant
                return any(each == path and other["type"] not in _SHAPES for each, other in found)
            case _:
                return False

    def line(self, path: Path, details: ErrorDetails) -> str:
        if details["type"] in {"union_tag_invalid", "union_tag_not_found"}:
            path = (*path, "kind")
        is_kind = len(path) == 3 and path[0] in INSTANCE_SECTIONS and path[2] == "kind"  # noqa: PLR2004
        return fault(self.document, path, self._kind(path) if is_kind else self._text(details, path))

    def path(self, details: ErrorDetails) -> Path:
        """The error's location without what the model added to it: names of union members and of validators."""
        path, values = list[str | int](), self.document.values
        if not details["loc"]:
            return ()
        *enclosing, last = details["loc"]
        for depth, key in enumerate(enclosing):
            if _holds(values, key) and not self._is_tag(details["loc"], depth):
                path.append(key)
                values = cast("Any", values)[key]  # a key of a mapping or a position in a list: _holds has looked
        if last != "[key]" and (_holds(values, last) or details["type"] in {"missing", "extra_forbidden"}):
            path.append(last)
        return tuple(path)

    def _is_tag(self, location: Path, depth: int) -> bool:
        """Tell a kind in the location: where there is a choice, it comes after the instance's name."""
        return depth == 2 and len(self.models.get(str(location[0]), {})) > 1  # noqa: PLR2004 section, name, kind

    def _kind(self, path: Path) -> str:
        section, instance, _ = path
        written = self.document.values[str(section)][instance].get("kind")
        installed = self.models[str(section)]
        if written is None:
            return f"this option is needed{suggestion('', installed)}"
        meant = suggestion(str(written), installed)
        remedy = "" if "did you mean" in meant else ": install the distribution that does (auditord hooks lists them)"
        return f"no installed hook module brings the kind '{written}'{meant}{remedy}"

    def _elsewhere(self, option: str) -> str:
        places = places_of(self.schema, option)
        return f" here; there is {' and '.join(places)}" if 0 < len(places) <= _FEW else ""

    def _text(self, details: ErrorDetails, path: Path) -> str:
        context = details.get("ctx", {})
        match details["type"]:
            case "extra_forbidden":
                allowed = options_at(self.schema, self.document.values, path[:-1])
                return f"there is no such option{self._elsewhere(str(path[-1]))}{suggestion(str(path[-1]), allowed)}"
            case "missing":
                return "this option is needed"
            case "value_error":
                return str(context["error"])
            case "string_pattern_mismatch" if context.get("pattern") == INSTANCE_NAME:
                return f"'{details['input']}' is no name for an instance: small letters, digits and _, a letter first"
            case "string_type":
                return f"{_plain(details)}; if it is one, put it in quotes"
            case _:
                return _plain(details)


def _holds(values: Any, key: str | int) -> bool:  # Any: what YAML holds
    if is_list(values):
        return isinstance(key, int) and key < len(values)
    return is_section(values) and key in values


def _plain(details: ErrorDetails) -> str:
    quoted = f", not '{details['input']}'" if details["type"] in _QUOTED else ""
    said = _SHAPES.get(details["type"]) or details["msg"].replace("Input", "it", 1)
    return f"{said}{quoted}{_meant(details)}"


def _meant(details: ErrorDetails) -> str:
    """The likely one of the values that are allowed."""
    allowed = re.findall(r"'([^']*)'", str(details.get("ctx", {}).get("expected", "")))
    likely = get_close_matches(str(details["input"]).lower(), {each.lower() for each in allowed}, n=1)
    return f"; did you mean '{next(each for each in allowed if each.lower() == likely[0])}'?" if likely else ""
