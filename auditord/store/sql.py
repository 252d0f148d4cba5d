"""Pieces of SQL with their parameters, written as ``%s`` for every database. User input never becomes SQL text."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, LiteralString

import msgspec

from auditord_hookspecs.query import Comparison


class Sql(msgspec.Struct, frozen=True):
    """A piece of SQL with placeholders, and the values for them."""

    sql: LiteralString
    parameters: tuple[object, ...] = ()


class Columns(Enum):
    """The records that a piece of SQL applies to, by their column ``more``."""

    COMPLETE = "complete"
    """``more`` is NULL: the columns have the only site, group, user and amounts, and no component name occurs twice."""
    INCOMPLETE = "incomplete"
    """``more`` is set: the document must be read."""
    EITHER = "either"


OPERATORS: Final[Mapping[Comparison, LiteralString]] = {
    Comparison.GT: ">",
    Comparison.GTE: ">=",
    Comparison.LT: "<",
    Comparison.LTE: "<=",
    Comparison.EQUALS: "=",
}

_DIGITS: Final[Sequence[LiteralString]] = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
_CHARACTERS: Final[Sequence[LiteralString]] = (*_DIGITS, "+", "-", ".", ":", "T", "E")
_NO_TEXT: Final[LiteralString] = ""

TRUE: Final = Sql("TRUE")
FALSE: Final = Sql("FALSE")


def join(separator: LiteralString, pieces: Sequence[Sql]) -> Sql:
    """Join pieces and their parameters."""
    parameters = tuple([parameter for piece in pieces for parameter in piece.parameters])
    return Sql(separator.join([piece.sql for piece in pieces]), parameters)


def all_of(conditions: Sequence[Sql]) -> Sql:
    """Return the condition that all are true."""
    return _in_brackets(join(" AND ", conditions)) if conditions else TRUE


def any_of(conditions: Sequence[Sql]) -> Sql:
    """Return the condition that at least one is true."""
    return _in_brackets(join(" OR ", conditions)) if conditions else FALSE


def case(condition: Sql, then: Sql, otherwise: Sql) -> Sql:
    """Return a CASE expression for one of two values."""
    text: LiteralString = f"CASE WHEN {condition.sql} THEN {then.sql} ELSE {otherwise.sql} END"
    return Sql(text, (*condition.parameters, *then.parameters, *otherwise.parameters))


def column_or_document(columns: Columns, column: Sql, document: Sql) -> Sql:
    """Return the column if it is complete, else the expression over the document."""
    match columns:
        case Columns.COMPLETE:
            return column
        case Columns.INCOMPLETE:
            return document
        case Columns.EITHER:
            return case(Sql("more IS NULL"), column, document)


def quote_json(text: str) -> str:
    """Return the JSON encoding of a string in a document, with quotation marks."""
    return msgspec.json.encode(text).replace(b"\\\\", b"\\u005c").decode()


def literal(text: str) -> LiteralString:
    """Return a number or an instant as text of a statement, since SQLite's time is quadratic in parameters.

    Raises:
        ValueError: the text has any other characters.
    """
    characters: list[LiteralString] = [_CHARACTERS[_CHARACTERS.index(character)] for character in text]
    return _NO_TEXT.join(characters)


def repeat(part: LiteralString, separator: LiteralString, count: int) -> LiteralString:
    """Return the part, repeated ``count`` times."""
    parts: list[LiteralString] = [part] * count
    return separator.join(parts)


def _in_brackets(piece: Sql) -> Sql:
    return Sql(f"({piece.sql})", piece.parameters)
