"""The parameters of the API's calls, described."""

from typing import Final

from auditord.web.api.operation import Parameter
from auditord.web.api.values import COUNT, INSTANT, KEY, NAME, Schema
from auditord.web.record_query import MAX_CONDITIONS
from auditord_hookspecs.query import Comparison

_COMPARISONS: Final = tuple(comparison.value for comparison in Comparison)
_TEXTS: Final[Schema] = {"type": "array", "items": NAME.schema, "minItems": 1, "maxItems": MAX_CONDITIONS}


RECORD_ID: Final = Parameter("record_id", "One segment, percent-encoded ('/' is %2F).", NAME.schema, in_path=True)


def _compared(schema: Schema) -> Schema:
    return {
        "type": "object",
        "properties": dict.fromkeys(_COMPARISONS, schema),
        "additionalProperties": False,
        "minProperties": 1,
        "not": {"anyOf": [{"required": ["gt", "gte"]}, {"required": ["lt", "lte"]}]},
    }


def _by_key(schema: Schema) -> Schema:
    return {
        "type": "object",
        "propertyNames": KEY.schema,
        "additionalProperties": schema,
        "minProperties": 1,
        "maxProperties": MAX_CONDITIONS,
    }


_TIMES: Final = _compared(INSTANT.schema)

FILTERS: Final = (
    Parameter("record_id", "Only the record with this id.", NAME.schema),
    Parameter("start_time", "Only records whose start compares so: start_time[gte]=….", _TIMES, deep=True),
    Parameter("stop_time", "The same for the stop; never true of an open record.", _TIMES, deep=True),
    Parameter("runtime", "The same for whole seconds from start to stop.", _compared(COUNT.schema), deep=True),
    Parameter(
        "meta",
        "By the lists of texts in meta: meta[key][c][]=value (has the value; repeated: has all), "
        "meta[key][dnc][]=value (has the key without the value), meta[key][any][]=value (repeated: has at least one), "
        "meta[key][absent]=true.",
        _by_key(
            {
                "type": "object",
                "properties": {"c": _TEXTS, "dnc": _TEXTS, "any": _TEXTS, "absent": {"const": True}},
                "additionalProperties": False,
                "minProperties": 1,
            }
        ),
        deep=True,
    ),
    Parameter(
        "component",
        "By amounts: component[name][gte]=4 is true if any component of this name compares so.",
        _by_key(_compared(COUNT.schema)),
        deep=True,
    ),
    Parameter("open", "true: only records without a stop time; false: only those with one.", {"type": "boolean"}),
    Parameter(
        "implausible",
        "true: only records with a CPU time of more than 1.5 times runtime and cores (components TotalCPU, Cores).",
        {"const": True},
    ),
)
