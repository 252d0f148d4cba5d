"""The parameters of the API's calls, described."""

from typing import Final

from auditord.web.api.browsing import AFTER, TASK
from auditord.web.api.browsing import DEFAULT_PAGE as DEFAULT_QUARANTINE_PAGE
from auditord.web.api.browsing import LIMIT as QUARANTINE_LIMIT
from auditord.web.api.listing import CURSOR, DEFAULT_PAGE, FORMAT, LARGEST_PAGE, LIMIT
from auditord.web.api.operation import Parameter
from auditord.web.api.sums_query import BY, FORMS, USAGE
from auditord.web.api.values import COUNT, INSTANT, KEY, NAME, Schema
from auditord.web.api.verdicts import LISTED, LISTED_ON_DEMAND
from auditord.web.record_query import MAX_CONDITIONS
from auditord_hookspecs.query import Comparison, SortField

_SORT_FIELD: Final[Schema] = {"type": "string", "enum": [field.value for field in SortField]}
_COMPARISONS: Final = tuple(comparison.value for comparison in Comparison)
_TEXTS: Final[Schema] = {"type": "array", "items": NAME.schema, "minItems": 1, "maxItems": MAX_CONDITIONS}


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
)

PAGING: Final = (
    Parameter(
        "sort_by",
        "sort_by[asc] or sort_by[desc]; pages follow start_time, records in another order come as NDJSON.",
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
        f"At most so many records; a page of JSON has {DEFAULT_PAGE} if not given, {LARGEST_PAGE} at most; NDJSON all.",
        LIMIT.schema,
    ),
    Parameter(
        "cursor",
        "Go on behind this place: start time and id of the last record, 2026-01-31T12:00:00Z,slurm-17. A record that "
        "is closed meanwhile keeps its place; one that is added behind the place is found, one before it is not. In "
        "another order than that of start_time, all records behind the place come.",
        CURSOR,
    ),
    Parameter(
        "format",
        "json (pages with 'next'; the default) or ndjson (one record per line, as many as there are); the header "
        "Accept chooses, too.",
        FORMAT.schema,
    ),
)

SUMS: Final = (
    Parameter(
        "by",
        f"What to group by, repeated for several: {FORMS}. Of several values under a key, the first counts.",
        BY.schema,
    ),
    Parameter(
        "usage",
        "Which components to sum up, repeated for several: component, or component:score|otherscore for the products "
        "with scores as well.",
        USAGE.schema,
    ),
    Parameter(
        "from",
        "Only the part of each record's runtime that lies in the window from this instant on counts, up to 'to' if "
        "that is given. A window that ends before it begins is empty.",
        INSTANT.schema,
    ),
    Parameter("to", "The end of the window, which is not part of it; without 'from' it has no begin.", INSTANT.schema),
    Parameter("as_of", "Count open records as if they had stopped then; without it they are left out.", INSTANT.schema),
)

RECORD_ID: Final = Parameter("record_id", "One segment, percent-encoded ('/' is %2F).", NAME.schema, in_path=True)

INSTANCE: Final = Parameter("instance", "The name of a collector or a plugin.", NAME.schema, in_path=True)

ENTRY: Final = Parameter("number", "The number of an entry.", COUNT.schema, in_path=True)

QUARANTINE: Final = (
    Parameter("task", "Only what this collector or sender left; api for bodies that clients posted.", TASK.schema),
    Parameter("after", "Only entries with a higher number.", AFTER.schema),
    Parameter(
        "limit",
        f"At most so many entries; {DEFAULT_QUARANTINE_PAGE} if not given.",
        QUARANTINE_LIMIT.schema,
    ),
)

VERDICTS: Final = Parameter(
    "verdicts",
    f"Which verdicts are listed: all (up to {LISTED_ON_DEMAND}) or failed (up to {LISTED}). By default all of up to "
    f"{LISTED} records, and of more those that failed. All are counted.",
    {"type": "string", "enum": ["all", "failed"]},
)
