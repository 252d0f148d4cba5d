"""The costliest requests of each route that reads: long periods, many rows, odd orders, all that can be named at once.

A route that is not in the decision table of access control fails a test there, and one of the table that reads and is
not here fails ``tests/integration/web/page/test_costly.py``.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from zoneinfo import available_timezones

from auditord.reporting import MEASURES
from auditord.web.limits import (
    MOST_COMPONENTS,
    MOST_DIMENSIONS,
    MOST_FILTERED,
    MOST_KEYS,
    MOST_ROWS,
    MOST_SCORES,
    MOST_ZONED,
)
from auditord.web.page.usage import FORMS
from tests.access_decisions import DECISIONS

WHOLE: Final = "from=2024-10-01&to=2026-11-27"
"""A little less than the 800 days that a view may show one by one."""

_VIEWS: Final = (
    f"by=user&bin=day&{WHOLE}",
    f"by=user&bin=month&{WHOLE}&measure=score-hours",
    f"by=user&bin=none&{WHOLE}",
    f"by=job_name&bin=week&{WHOLE}&measure=cpu-efficiency",
    f"by=size&bin=day&{WHOLE}&timezone=Europe/Berlin",
)
_TABLES: Final = (
    f"by=user&bin=month&{WHOLE}&top={MOST_ROWS}",
    f"by=user&bin=day&period=30-days&top={MOST_ROWS}",
    f"by=user&bin=day&chart=days&{WHOLE}",
    "by=job_name&bin=day&period=90-days&measure=idle-core-hours",
    *(f"by=user&bin=quarter&{WHOLE}&measure={name}" for name in MEASURES if name != "co2"),
)
_COLUMNS: Final = "&".join(
    f"column={name}" for name in ("site", "group", "user", "VO", *(f"x{at}" for at in range(26)))
)
_LISTS: Final = (
    *(f"sort_by[{way}]={field}" for way in ("asc", "desc") for field in ("runtime", "stop_time", "record_id")),
    "sort_by[desc]=runtime&meta[job_name][c][0]=name 7&component[Cores][gte]=1&include=lake",
)
_SUMS: Final = (
    "by=meta:user_id&by=stop:day&by=amount:Cores&usage=Cores:HEPscore23&usage=TotalCPU",
    "by=meta:job_name&by=meta:user_id&by=score:Cores:HEPscore23&by=start:day:Europe/Berlin&by=has:GPU&usage=Cores",
    "by=meta:VO&from=2024-10-01T00:00:00Z&to=2026-11-27T00:00:00Z&as_of=2026-11-27T00:00:00Z&usage=Cores:HEPscore23",
)

_KEYS: Final = [
    "by=meta:" + "|".join(f"k{dimension}_{key}" for key in range(MOST_KEYS)) for dimension in range(MOST_DIMENSIONS)
]
_COMPONENTS: Final = [f"usage=c{number}:s{number}" for number in range(MOST_COMPONENTS)]
_SCORES: Final = "usage=Cores:" + "|".join(("HEPscore23", *(f"s{number}" for number in range(1, MOST_SCORES))))
_ZONES: Final = sorted(each for each in available_timezones() if each.startswith("America/"))[:MOST_DIMENSIONS]
PRODUCTS: Final = (
    f"by=meta:user_id&{_SCORES}",
    f"by=stop:day&by=amount:Cores&{_SCORES}&usage=TotalCPU",
    "by=meta:group_id&by=stop:day&usage=Cores:HEPscore23",
    "&".join([*_KEYS, *_COMPONENTS]),
    "&".join([*(f"by=stop:month:{zone}" for zone in _ZONES)]),
    "&".join([*(f"by=stop:month:{zone}" for zone in _ZONES[:2]), *_COMPONENTS[: MOST_ZONED // 2 - 1]]),
    "&".join(
        [*_COMPONENTS, *(f"meta[k{number}][dnc][]=v" for number in range(MOST_FILTERED // (MOST_COMPONENTS + 1)))]
    ),
)
"""Sums with each product of two numbers that a caller chooses at its maximum, or beyond that of groups."""

_OF_ROUTES: Final[Mapping[str, Sequence[str]]] = {
    "/usage": [f"/usage?{view}" for view in (*_VIEWS, *_TABLES)],
    **{f"/usage.{form}": [f"/usage.{form}?{view}" for view in _VIEWS] for form in FORMS},
    "/jobs": [f"/jobs?{each}&limit={MOST_ROWS}&{_COLUMNS}" for each in _LISTS],
    "/records": [f"/records?{each.replace('&include=lake', '')}" for each in _LISTS],
    "/api/v1/records": [
        *(f"/api/v1/records?{each}&format=ndjson" for each in _LISTS),
        "/api/v1/records?limit=10000&include=lake",
    ],
    "/api/v1/aggregates": [f"/api/v1/aggregates?{each}" for each in (*_SUMS, *PRODUCTS)],
}
COSTLIEST: Final[Mapping[str, Sequence[str]]] = {
    path: [each.replace(" ", "%20") for each in _OF_ROUTES.get(path, [decision.target or path])]
    for (method, path), decision in DECISIONS.items()
    if method == "GET"
}
"""Targets by route; those that have nothing to be chosen are asked as the decision table asks them."""
