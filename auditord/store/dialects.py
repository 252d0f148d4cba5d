"""What databases say differently in the statement of an aggregate (:mod:`auditord.store.aggregates_sql`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString, Protocol

from auditord.store.aggregates import Limbs
from auditord.store.rows import META_COLUMNS, OLDER_KEYS
from auditord.store.sql import Columns, Sql
from auditord_hookspecs import AggregateQuery, ComponentAmount, ComponentPresent, Dimension

# These columns hold the first value under the first of both keys that a record has.
_COLUMNS_OF_TWO: Final[Mapping[tuple[str, ...], LiteralString]] = {
    ("site_id", "site"): "site",
    ("group_id", "group"): "user_group",
    ("user_id", "user"): "user_name",
}


@dataclass(frozen=True, slots=True)
class Key:
    """What is grouped by.

    Args:
        column: of a record.
        shown: how a value is shown, once per group, with its name in the place of the braces.
        costly: whether documents are looked into.
        over_amounts: if it is not of the record, but of the amounts that are summed up, with their names.
    """

    column: Sql
    shown: LiteralString = "{}"
    costly: bool = False
    over_amounts: LiteralString | None = None


@dataclass(frozen=True, slots=True)
class State:
    """Finished records, or open ones.

    Args:
        stop: the stop time: a column, or the instant at which open records count as stopped.
        runtime: what is summed up as runtime.
        condition: which of them count.
        costly: whether the runtime is long to compute.
    """

    stop: Sql
    runtime: Sql
    condition: Sql
    costly: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """The components of one name, as documents list them.

    Args:
        table: what is joined to the records.
        condition: which records are looked into, and which of their components.
        amount: column with its amount.
        scores: column with its scores as JSON.
    """

    table: LiteralString
    condition: Sql
    amount: LiteralString
    scores: LiteralString


class Dialect(Protocol):
    """What one database says in its own words. Sums are over columns of a subquery: ``ran``, ``stopped``, amounts."""

    @property
    def records(self) -> LiteralString:
        """The table of records."""
        ...

    @property
    def score_sets(self) -> LiteralString:
        """The table of score sets."""
        ...

    @property
    def scores_of_set(self) -> LiteralString:
        """The text of a score set, where its table is joined."""
        ...

    @property
    def more(self) -> LiteralString:
        """That columns do not tell all; as the index on such records has it."""
        ...

    @property
    def no_more(self) -> LiteralString:
        """The opposite: each record has one of both."""
        ...

    @property
    def sealed(self) -> LiteralString:
        """What ends a subquery whose columns are to be computed just once."""
        ...

    @property
    def no_text(self) -> LiteralString:
        """NULL as a text."""
        ...

    @property
    def no_number(self) -> LiteralString:
        """NULL as a sum."""
        ...

    def states(self, query: AggregateQuery, columns: Columns) -> Sequence[State]:
        """Finished records, and open ones if they count."""
        ...

    def key(self, dimension: Dimension, stop: Sql, columns: Columns) -> Key:
        """What is grouped by, as :class:`auditord.store.aggregates.Folding` wants it; of names that can be there."""
        ...

    def key_of_amount(self, dimension: ComponentAmount | ComponentPresent, amount: LiteralString) -> Key:
        """The same from the name of an amount that is summed up anyway."""
        ...

    def amount(self, component: str) -> Sql:
        """The amount of a component that has no column, where no name occurs twice; looked up in the document."""
        ...

    def listing(self, component: str) -> Listing:
        """The components of a name in documents, where columns do not tell."""
        ...

    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        """Columns for the number of records, first and last stop time in microseconds, and the sum of runtimes."""
        ...

    def usage(self, amount: LiteralString, component: str) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Columns for the sum of amounts and of their products with runtimes."""
        ...


def key_of_meta(keys: tuple[str, ...], columns: Columns, looked_up: Callable[[tuple[str, ...]], Sql]) -> Key:
    """The first value under the first of the keys that a record has, from a column as far as one tells.

    Args:
        keys: at least one.
        columns: how far they tell.
        looked_up: makes the same from the record's meta.
    """
    if columns is not Columns.TELL_ALL:
        found = _COLUMNS_OF_TWO.get(keys)
        return Key(looked_up(keys), costly=True) if found is None else Key(Sql(found))
    keys = tuple([key for key in keys if key not in OLDER_KEYS])  # of these records, none has one
    if not keys:
        return Key(Sql("NULL"))
    if keys[0] not in META_COLUMNS:
        return Key(looked_up(keys), costly=True)
    column = META_COLUMNS[keys[0]]
    if not keys[1:]:
        return Key(Sql(column))
    others = looked_up(keys[1:])
    return Key(Sql(f"CASE WHEN {column} IS NULL THEN {others.sql} ELSE {column} END", others.parameters), costly=True)
