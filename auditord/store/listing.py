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

_YEARS: Final = as_json([number_of(date(year, 1, 1)) for year in range(1970, 2100)])
"""The cells of years that are looked up; more or fewer would only choose another way to the same answer."""


def users_with_few(query: RecordQuery) -> Work[Sequence[str]]:
    """The users of whom each record of an answer has one, if they have few; none if they have many, or unknown."""
    users = [user for user in fold(query.where, _users, _first, lambda _: ()) if can_be_there(user)]
    if not users:
        return ()
    most = FEW_TO_SORT if query.limit is None else min(FEW_TO_SORT, _PASSED_FOR_ONE * query.limit)
    rows = yield from ask("rolled_records_of_users", users=as_json(users), years=_YEARS)
    return users if rows and rows[0][0] <= most else ()


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
