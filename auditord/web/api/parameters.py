"""The parameters of the API's calls, described."""

from typing import Final

from auditord.web.api.browsing import DEFAULT_PAGE as DEFAULT_QUARANTINE_PAGE
from auditord.web.api.browsing import LARGEST_PAGE as LARGEST_QUARANTINE_PAGE
from auditord.web.api.listing import DEFAULT_PAGE, LARGEST_PAGE
from auditord.web.api.operation import Parameter, Schema
from auditord.web.api.sums_query import FORMS
from auditord.web.api.verdicts import LISTED, LISTED_ON_DEMAND
from auditord_hookspecs.query import Comparison, SortField
from auditord_hookspecs.records import MAX_AMOUNT

_TEXT: Final[Schema] = {"type": "string"}
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 256}
_INSTANT: Final[Schema] = {"type": "string", "format": "date-time"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": MAX_AMOUNT}
_SORT_FIELD: Final[Schema] = {"type": "string", "enum": [field.value for field in SortField]}
_COMPARISONS: Final = tuple(comparison.value for comparison in Comparison)
_TEXTS: Final[Schema] = {"type": "array", "items": _NAME}


def _compared(schema: Schema) -> Schema:
    return {
        "type": "object",
        "properties": dict.fromkeys(_COMPARISONS, schema),
        "additionalProperties": False,
        "not": {"anyOf": [{"required": ["gt", "gte"]}, {"required": ["lt", "lte"]}]},
    }


FILTERS: Final = (
    Parameter("record_id", "Only the record with this id.", _NAME),
    Parameter("start_time", "Only records whose start compares so: start_time[gte]=….", _compared(_INSTANT), deep=True),
    Parameter("stop_time", "The same for the stop; never true of an open record.", _compared(_INSTANT), deep=True),
    Parameter("runtime", "The same for whole seconds from start to stop.", _compared(_COUNT), deep=True),
    Parameter(
        "meta",
        "By the lists of texts in meta: meta[key][c][]=value (has the value; repeated: has all), "
        "meta[key][dnc][]=value (has the key without the value), meta[key][any][]=value (repeated: has at least one), "
        "meta[key][absent]=true.",
        {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {"c": _TEXTS, "dnc": _TEXTS, "any": _TEXTS, "absent": {"const": True}},
                "additionalProperties": False,
            },
        },
        deep=True,
    ),
    Parameter(
        "component",
        "By amounts: component[name][gte]=4 is true if any component of this name compares so.",
        {"type": "object", "additionalProperties": _compared(_COUNT)},
        deep=True,
    ),
    Parameter("open", "true: only records without a stop time; false: only those with one.", {"type": "boolean"}),
)

PAGING: Final = (
    Parameter(
        "sort_by",
        "sort_by[asc] or sort_by[desc]; pages follow start_time, other orders need format=ndjson.",
        {
            "type": "object",
            "properties": {"asc": _SORT_FIELD, "desc": _SORT_FIELD},
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": False,
        },
        deep=True,
    ),
    Parameter(
        "limit",
        f"At most so many records; of JSON {DEFAULT_PAGE} if not given and {LARGEST_PAGE} at most, of NDJSON all.",
        _COUNT,
    ),
    Parameter(
        "cursor",
        "Go on behind this place: start time and id of the last record, 2026-01-31T12:00:00Z,slurm-17. A record that "
        "is closed meanwhile keeps its place; one that is added behind the place is found, one before it is not.",
        _TEXT,
    ),
    Parameter(
        "format",
        "json (pages with 'next'; the default) or ndjson (one record per line, as many as there are); the header "
        "Accept chooses, too.",
        {"type": "string", "enum": ["json", "ndjson"]},
    ),
)

SUMS: Final = (
    Parameter(
        "by",
        f"What to group by, repeated for several: {FORMS}. Of several values under a key, the first counts.",
        _TEXTS,
    ),
    Parameter(
        "usage",
        "Which components to sum up, repeated for several: component, or component:score|otherscore for the products "
        "with scores as well.",
        _TEXTS,
    ),
    Parameter("from", "With 'to': only the part of each record's runtime that lies in this window counts.", _INSTANT),
    Parameter("to", "The end of the window, which is not part of it.", _INSTANT),
    Parameter("as_of", "Count open records as if they had stopped then; without it they are left out.", _INSTANT),
)

RECORD_ID: Final = Parameter("record_id", "One segment, percent-encoded ('/' is %2F).", _NAME, in_path=True)

INSTANCE: Final = Parameter("instance", "The name of a collector or a plugin.", _NAME, in_path=True)

ENTRY: Final = Parameter("number", "The number of an entry.", _COUNT, in_path=True)

QUARANTINE: Final = (
    Parameter("task", "Only what this collector or sender left; api for bodies that clients posted.", _NAME),
    Parameter("after", "Only entries with a higher number.", _COUNT),
    Parameter(
        "limit",
        f"At most so many entries; {DEFAULT_QUARANTINE_PAGE} if not given.",
        {"type": "integer", "minimum": 1, "maximum": LARGEST_QUARANTINE_PAGE},
    ),
)

VERDICTS: Final = Parameter(
    "verdicts",
    f"Which verdicts are listed: all (up to {LISTED_ON_DEMAND}) or failed (up to {LISTED}). By default all of up to "
    f"{LISTED} records, and of more those that failed. All are counted.",
    {"type": "string", "enum": ["all", "failed"]},
)
