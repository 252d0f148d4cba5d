"""The verdicts on many records: all are counted, and as many are listed as fit into an answer."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from auditord.ingest import QUEUED
from auditord.store import Verdict as StoreVerdict
from auditord.web.api.operation import Parameter
from auditord.web.problem_shapes import Verdict, Verdicts
from auditord.web.record_query import InvalidQuery, about, by_name, parse_query_string, scalar

ACCEPTED: Final = frozenset({QUEUED.value, *(each.value for each in StoreVerdict if each.accepted)})

LISTED: Final = 10_000
"""Verdicts that are listed in any case; of more records, those that were refused."""

LISTED_ON_DEMAND: Final = 100_000
"""Verdicts that are listed if all are asked for."""

VERDICTS: Final = Parameter(
    "verdicts",
    f"Which verdicts are listed: all (up to {LISTED_ON_DEMAND}) or failed (up to {LISTED}). By default all of up to "
    f"{LISTED} records, and of more those that failed. All are counted.",
    {"type": "string", "enum": ["all", "failed"]},
)


Wanted: TypeAlias = Literal["all", "failed"] | None


def read_wanted(query: str) -> Wanted:
    """Read the parameter ``verdicts`` of a raw query string.

    Raises:
        InvalidQuery: it is neither ``all`` nor ``failed``.
    """
    given = by_name(parse_query_string(query)).get("verdicts", ())
    with about("verdicts"):
        match scalar("verdicts", given):
            case None:
                return None
            case "all":
                return "all"
            case "failed":
                return "failed"
            case other:
                raise InvalidQuery(f"'verdicts' is all or failed, not '{other[:60]}'")


class VerdictList:
    """Counts verdicts and keeps those that are to be listed.

    Args:
        wanted: ``all``, ``failed`` or, for None, all of up to :data:`LISTED` records and else those that failed.
    """

    def __init__(self, wanted: Wanted = None) -> None:
        self._wanted = wanted
        self._most = LISTED_ON_DEMAND if wanted == "all" else LISTED
        self._counts = Counter[str]()
        self._kept: list[Verdict] = []

    def __len__(self) -> int:
        return self._counts.total()

    def __getitem__(self, verdict: str) -> int:
        return self._counts[verdict]

    @property
    def all_accepted(self) -> bool:
        """True if nothing was refused."""
        return self._counts.keys() <= ACCEPTED

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Count them, and keep what may be listed."""
        for verdict in verdicts:
            self._counts[verdict.verdict] += 1
            if self._is_listed(verdict) and len(self._kept) < self._most:
                self._kept.append(verdict)
        if self._wanted is None and len(self) > LISTED:
            self._wanted = "failed"
            self._kept = list(filter(self._is_listed, self._kept))

    def summed_up(self) -> Verdicts:
        """The summary for the client."""
        return Verdicts(dict(self._counts), self._kept, len(self) - len(self._kept))

    def _is_listed(self, verdict: Verdict) -> bool:
        return self._wanted != "failed" or verdict.verdict not in ACCEPTED
