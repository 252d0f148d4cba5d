"""Make the answer of an aggregate from the rows of a database, in whole numbers of any size.

A store groups by what its SQL can express and sums integers; the rest is done here. A statement has several parts
(records whose columns are complete, components that are read from documents, open records), so a group can have
several rows. The columns of a row are: the number of the part; one for each dimension; the scores of the records'
components (:func:`auditord.store.rows.scores_text`); those of the one component that was read from documents; the sums.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from auditord.database.instants import from_micros
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    AmountSums,
    CalendarPeriod,
    ComponentAmount,
    ComponentPresent,
    ComponentUsage,
    Dimension,
    ExceedsRuntime,
    Group,
    MetaValue,
    Score,
    ScoreSums,
    ScoreValue,
    TooManyGroups,
    UsageSums,
)
from auditord_hookspecs.aggregates import SUMS_PER_GROUP, KeyValue, exact_score, in_order
from auditord_hookspecs.vocabulary import HELD

Row: TypeAlias = Sequence[Any]  # Any: columns as the database's driver gives them
Limbs: TypeAlias = tuple[int, ...]
"""The columns that make up one number: the number of bits by which each is shifted."""

Scores: TypeAlias = Mapping[tuple[str, str], Decimal]
"""The scores of a record's components, by the names of component and score."""

WHOLE: Final[Limbs] = (0,)

_MOST_KNOWN: Final = 5_000
"""Decoded sets of scores that are kept for further rows."""

_NEVER: Final = 1 << 63
"""Later than any time."""

_Key: TypeAlias = tuple[KeyValue, ...]


class NotRolledUp(Exception):
    """Roll-ups cannot give a sum: it needs stop times of cells that have lost records, or has huge amounts."""


class Overflow(NotRolledUp):
    """A sum or product did not fit 64 bits. If numbers are split, this can only happen within a cell."""


class Kind(Enum):
    """The kind of rows that a part sums up."""

    RECORDS = "records"
    CELLS = "cells"
    """The stop times are followed by those of the first and last removed record, and the number of left-out records."""
    REMOVED = "removed"
    """Versions that are in the cells, but no longer stored."""


class Part(msgspec.Struct, frozen=True):
    """The columns with sums in the rows of one part.

    Args:
        runtime: the limbs of the sum of runtimes, after the columns for the number of records and for the first and
            the last stop time in microseconds; None if these four are missing.
        usage: for each of these positions in the query's ``usage``, the limbs of amount and of amount times runtime.
        totals: for each of these positions, which follow, the limbs of the total in seconds, and of that in ticks.
        kind: the kind of rows that are summed up.
        has_numbers: whether each position also has the number of records with the component.
    """

    runtime: Limbs | None
    usage: tuple[tuple[int, Limbs, Limbs], ...]
    kind: Kind = Kind.RECORDS
    has_numbers: bool = False
    totals: tuple[tuple[int, Limbs, Limbs], ...] = ()

    @property
    def sign(self) -> int:
        """1 if the sums are added, -1 if they are subtracted."""
        return -1 if self.kind is Kind.REMOVED else 1


@dataclass(slots=True, eq=False)
class _ScoreSum:
    """The sums over components with one score, and the number of records that have them."""

    records: int = 0
    amount: int = 0
    amount_runtime: int = 0


@dataclass(slots=True, eq=False)
class _Usage:
    query: ComponentUsage
    by_score: Mapping[str, dict[Decimal | None, _ScoreSum]]
    records: int = 0
    amount: int = 0
    amount_runtime: int = 0

    def add(self, records: int, amount: int, amount_runtime: int, scores: Scores) -> int:
        """Add to the sums, and return how many values of scores are new."""
        self.records += records
        self.amount += amount
        self.amount_runtime += amount_runtime
        new = 0
        for score, by_value in self.by_score.items():
            value = scores.get((self.query.component, score))
            if (found := by_value.get(value)) is None:
                found = by_value[value] = _ScoreSum()
                new += 1
            found.records += records
            found.amount += amount
            found.amount_runtime += amount_runtime
        return new

    def result(self) -> UsageSums:
        scores = {
            score: ScoreSums(
                {
                    value: AmountSums(each.amount, each.amount_runtime)
                    for value, each in by_value.items()
                    if each.records
                }
            )
            for score, by_value in self.by_score.items()
        }
        return UsageSums(AmountSums(self.amount, self.amount_runtime), scores, self.records > 0)


@dataclass(slots=True, eq=False)
class _Group:
    """A growing group. Times are microseconds since 1970.

    Args:
        first_gone: the first stop time of records that were removed; cells may still include it in ``first``.
        last_gone: the last one.
        stored_first: the first stop time of records that are certainly stored.
        stored_last: the last one.
    """

    usage: tuple[_Usage, ...]
    records: int = 0
    runtime: int = 0
    first: int = _NEVER
    last: int = -_NEVER
    first_gone: int = _NEVER
    last_gone: int = -_NEVER
    stored_first: int = _NEVER
    stored_last: int = -_NEVER

    def count(self, kind: Kind, counted: Sequence[Any], runtime: int) -> None:  # Any: see Row
        """Add or subtract records: their number, first and last stop time, and the sum of their runtimes."""
        records, first, last = map(int, counted)
        if kind is Kind.REMOVED:
            self.records -= records
            self.runtime -= runtime
            self.lose(first, last)
            return
        self.records += records
        self.runtime += runtime
        self.first, self.last = min(self.first, first), max(self.last, last)
        if kind is Kind.RECORDS:
            self.stored_first, self.stored_last = min(self.stored_first, first), max(self.stored_last, last)

    def lose(self, first: int | None, last: int | None) -> None:
        """Note the first and last stop time of records that were removed from cells."""
        self.first_gone = self.first_gone if first is None else min(self.first_gone, first)
        self.last_gone = self.last_gone if last is None else max(self.last_gone, last)

    def result(self, key: _Key) -> Group:
        if self.first_gone <= self.first and self.stored_first > self.first_gone:
            raise NotRolledUp
        if self.last_gone >= self.last and self.stored_last < self.last_gone:
            raise NotRolledUp
        usage = tuple([usage.result() for usage in self.usage])
        return Group(key, self.records, self.runtime, from_micros(self.first), from_micros(self.last), usage)


class Folding:
    """Collects the rows of a query and makes its answer.

    Methods raise :class:`NotRolledUp` if roll-ups cannot answer the query.
    """

    def __init__(self, query: AggregateQuery, parts: Sequence[Part]) -> None:
        self._query = query
        self._parts = parts
        self._readers = [reader(dimension) for dimension in query.by]
        self._groups: dict[_Key, _Group] = {}
        self._known_scores: dict[str, Scores] = {}
        self._size = _Size(query)

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows, in any order."""
        behind = 1 + len(self._readers)
        for row in rows:
            number: int = row[0]
            part = self._parts[number]
            scores: Scores = {}
            if (text := row[behind]) is not None:
                if text not in self._known_scores:
                    if len(self._known_scores) >= _MOST_KNOWN:
                        self._known_scores.clear()
                    self._known_scores[text] = set_of_scores(text)
                scores = self._known_scores[text]
            numbers: Iterator[Any] = iter(row[behind + 2 :])  # Any: see Row
            counted = None if part.runtime is None else (next(numbers), next(numbers), next(numbers))
            lost: tuple[Any, Any, Any] = None, None, 0  # Any: see Row
            if part.kind is Kind.CELLS and counted:
                lost = next(numbers), next(numbers), next(numbers)
            if lost[2]:
                raise NotRolledUp
            if counted is not None and not counted[0]:
                continue  # sums over nothing
            values = zip(self._readers, row[1:behind], strict=True)
            key = tuple([value if read is None else read(value, scores) for read, value in values])
            group = self._groups.get(key)
            if group is None:
                self._size.add(1)
                sums = [_Usage(each, {score: {} for score in each.scores}) for each in self._query.usage]
                group = self._groups[key] = _Group(tuple(sums))
            if counted is not None and part.runtime is not None:
                group.count(part.kind, counted, _number(numbers, part.runtime) or 0)
                group.lose(*[None if each is None else int(each) for each in lost[:2]])
            self._add_usage(group, part, numbers, scores, row[behind + 1])

    def result(self) -> Aggregates:
        """Return the answer, once all rows have been added."""
        groups = {key: group for key, group in self._groups.items() if group.records}
        keys = _sort_keys(groups)
        return Aggregates(tuple([groups[key].result(key) for key in keys]), self._query.ticks_per_second)

    def _add_usage(
        self, group: _Group, part: Part, numbers: Iterator[int | None], scores: Scores, component: str | None
    ) -> None:
        for position, of_amount, of_product in part.usage:
            amount, product = _number(numbers, of_amount), _number(numbers, of_product)
            records = (next(numbers) or 0) if part.has_numbers else 1
            usage, sign = group.usage[position], part.sign
            if amount is not None and product is not None:
                found = scores if component is None else component_scores(usage.query.component, component)
                time = 0 if usage.query.component in HELD else product
                if new := usage.add(sign * int(records), sign * amount, sign * time, found):
                    self._size.add(0, new)
        for position, of_seconds, of_ticks in part.totals:
            seconds, ticks = _number(numbers, of_seconds), _number(numbers, of_ticks)
            records = (next(numbers) or 0) if part.has_numbers else 1
            usage = group.usage[position]
            if seconds is not None or ticks is not None:
                found = scores if component is None else component_scores(usage.query.component, component)
                time = (seconds or 0) * self._query.ticks_per_second + (ticks or 0)
                if new := usage.add(part.sign * int(records), 0, part.sign * time, found):
                    self._size.add(0, new)


def merge_answers(query: AggregateQuery, answers: Iterable[Aggregates]) -> Aggregates:
    """Merge the answers to a query over disjoint parts of the records."""
    groups: dict[_Key, Group] = {}
    size = _Size(query)
    for answer in answers:
        for group in answer.groups:
            if (known := groups.get(group.key)) is None:
                groups[group.key] = group
                size.add(1, _values(group))
                continue
            groups[group.key] = joined = Group(
                group.key,
                known.records + group.records,
                known.runtime + group.runtime,
                min(known.first_stop, group.first_stop),
                max(known.last_stop, group.last_stop),
                tuple([_add_usage_sums(*both) for both in zip(known.usage, group.usage, strict=True)]),
            )
            size.add(0, _values(joined) - _values(known))
    return Aggregates(tuple([groups[key] for key in _sort_keys(groups)]), query.ticks_per_second)


class _Size:
    """The size of a growing answer: its groups, and the sums in them."""

    def __init__(self, query: AggregateQuery) -> None:
        self._most = query.most_groups
        self._groups = self._sums = 0
        self._sums_per_group = 1 + sum(1 + len(usage.scores) for usage in query.usage)

    def add(self, groups: int, values: int = 0) -> None:
        """Count new groups, and new values of scores in groups.

        Raises:
            TooManyGroups: the answer would become larger than the query allows.
        """
        self._groups += groups
        self._sums += groups * self._sums_per_group + values
        if self._most is None:
            return
        if self._groups > self._most:
            raise TooManyGroups(f"there are more than {self._most:,} groups")
        if self._sums > (most := self._most * SUMS_PER_GROUP):
            raise TooManyGroups(f"there are more than {most:,} sums (groups times components, scores and their values)")


def _values(group: Group) -> int:
    return sum(len(sums.by_value) for usage in group.usage for sums in usage.scores.values())


def _add_usage_sums(one: UsageSums, other: UsageSums) -> UsageSums:
    scores = {
        score: ScoreSums(
            {
                value: sums.by_value.get(value, AmountSums()) + other.scores[score].by_value.get(value, AmountSums())
                for value in sums.by_value.keys() | other.scores[score].by_value.keys()
            }
        )
        for score, sums in one.scores.items()
    }
    return UsageSums(one.sums + other.sums, scores, one.known or other.known)


def _number(columns: Iterator[Any], limbs: Limbs) -> int | None:  # Any: as the database's driver gives them
    if limbs is WHOLE:  # the usual case
        part = next(columns)
        return None if part is None else int(part)
    number: int | None = None
    for shift in limbs:
        part = next(columns)
        if part is not None:
            number = (number or 0) + (int(part) << shift)
    return number


def _sort_keys(keys: Collection[_Key]) -> list[_Key]:
    try:
        return sorted(keys)  # each element has one type, unless it is None
    except TypeError:
        return sorted(keys, key=in_order)


def set_of_scores(text: str) -> Scores:
    """Return the scores of a record, from the text of :func:`auditord.store.rows.scores_text`.

    The scores of a total are also those of the held amount that it replaces.
    """
    components = msgspec.json.decode(text, type=list[tuple[str, tuple[Score, ...]]])
    return {
        (name, score.name): exact_score(score.value)
        for component, scores in components
        for score in reversed(scores)  # of several with one name, the first is kept
        for name in (component, HELD.get(component, component))
    }


def component_scores(component: str, text: str) -> Scores:
    """Return the scores of one component, from their JSON in the record's document."""
    scores = msgspec.json.decode(text, type=tuple[Score, ...])
    return {(component, score.name): exact_score(score.value) for score in reversed(scores)}


def reader(dimension: Dimension) -> Callable[[Any, Scores], KeyValue] | None:  # Any: see Row
    """Return a function that makes a key's value from its column and the record's scores; None if the column is it."""
    match dimension:
        case ScoreValue(component, score):
            return lambda value, scores: (scores if value is None else component_scores(component, value)).get(
                (component, score)
            )
        case ComponentAmount():
            return _amount
        case ComponentPresent():
            return lambda value, _: bool(int(value or 0))  # SQL NULL: no record can have the component
        case ExceedsRuntime():
            return partial(_exceeds, dimension)
        case CalendarPeriod():
            return lambda value, _: date.fromisoformat(value)
        case MetaValue():
            return None


def _amount(value: int | str | None, _: Scores) -> int | None:
    """Return an amount: the column itself, or the sum of comma-separated amounts."""
    return sum(map(int, value.split(","))) if isinstance(value, str) else value


def _exceeds(dimension: ExceedsRuntime, value: int | str | None, _: Scores) -> bool:
    """Return the value of the dimension from a flag or semicolon-separated numbers; NULL means that one is unknown."""
    if not (isinstance(value, str) and ";" in value):
        return bool(int(value or 0))
    amount, runtime, *per = [_amount(number or None, {}) for number in value.split(";")]
    return dimension.holds(amount, runtime, *(per or [None]))
