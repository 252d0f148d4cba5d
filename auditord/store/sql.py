"""Pieces of SQL and what they stand for: what the compilers of all stores share. Pure, parameters only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, LiteralString

from auditord_hookspecs.query import Comparison


@dataclass(frozen=True, slots=True)
class Sql:
    """A piece of SQL with placeholders, and what they stand for."""

    sql: LiteralString
    parameters: tuple[object, ...] = ()


class Columns(Enum):
    """How much the narrow columns tell of the records that a piece of SQL is about: their column ``more`` says it."""

    TELL_ALL = "tell all"
    """``more`` is NULL: site, group, user and the amounts with columns are just these, no name occurs twice."""
    TELL_SOME = "tell some"
    """``more`` is set: the document is to be asked."""
    MAY_TELL = "may tell"
    """Both kinds."""


OPERATORS: Final[Mapping[Comparison, LiteralString]] = {
    Comparison.GT: ">",
    Comparison.GTE: ">=",
    Comparison.LT: "<",
    Comparison.LTE: "<=",
    Comparison.EQUALS: "=",
}

TRUE: Final = Sql("TRUE")
FALSE: Final = Sql("FALSE")


def join(separator: LiteralString, pieces: Sequence[Sql]) -> Sql:
    """The pieces, one after the other."""
    parameters = tuple([parameter for piece in pieces for parameter in piece.parameters])
    return Sql(separator.join([piece.sql for piece in pieces]), parameters)


def all_of(conditions: Sequence[Sql]) -> Sql:
    """That each is true."""
    return _in_brackets(join(" AND ", conditions)) if conditions else TRUE


def any_of(conditions: Sequence[Sql]) -> Sql:
    """That at least one is true."""
    return _in_brackets(join(" OR ", conditions)) if conditions else FALSE


def told(columns: Columns, column: Sql, document: Sql) -> Sql:
    """What is asked of a column where it tells, and of the document otherwise."""
    match columns:
        case Columns.TELL_ALL:
            return column
        case Columns.TELL_SOME:
            return document
        case Columns.MAY_TELL:
            return Sql(
                f"CASE WHEN more IS NULL THEN {column.sql} ELSE {document.sql} END",
                (*column.parameters, *document.parameters),
            )


def _in_brackets(piece: Sql) -> Sql:
    return Sql(f"({piece.sql})", piece.parameters)
