"""Users who have few records, by the roll-ups: their lists are sorted, instead of read off an index of the order.

A pass over such an index fetches every record to see whose it is. It ends with the limit, which those who have many
records reach soon.
"""

from collections.abc import Sequence
from datetime import date
from typing import Final

from auditord.store.conditions import can_be_there
from auditord.store.rollups.cells import number_of
from auditord.store.work import Work, as_json, ask
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.query import Leaf, MetaContains, MetaContainsAny, fold

FEW_TO_SORT: Final = 10_000
"""Records that are found by another index and sorted in less time than a pass over the index of their order takes."""

_PASSED_FOR_ONE: Final = 10
"""Records of a user, for each that is wanted, from which on the pass is likely to end early."""

_MONTHS: Final = as_json([number_of(date(year, month, 1)) for year in range(1970, 2100) for month in range(1, 13)])
"""The cells of months that are looked up; more or fewer would only choose another way to the same answer."""


def users_wanted(query: RecordQuery) -> Sequence[str]:
    """The users of whom each record of an answer has one; none where a query is about everybody's."""
    return [user for user in fold(query.where, _users, _first, lambda _: ()) if can_be_there(user)]


def have_few(users: Sequence[str], limit: int | None) -> Work[bool]:
    """Return whether users have few records compared to the limit of an answer; False where that is unknown."""
    most = FEW_TO_SORT if limit is None else min(FEW_TO_SORT, _PASSED_FOR_ONE * limit)
    rows = yield from ask("rolled_records_of_users", users=as_json(users), months=_MONTHS, most=FEW_TO_SORT)
    return bool(rows) and rows[0][0] <= most


def _users(leaf: Leaf) -> Sequence[str]:
    match leaf:
        case MetaContains("user_id", value):
            return (value,)
        case MetaContainsAny("user_id", values):
            return values
        case _:
            return ()


def _first(parts: Sequence[Sequence[str]]) -> Sequence[str]:
    return next(filter(None, parts), ())
