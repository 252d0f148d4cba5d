"""Sums of integers in SQLite's SQL, and what keeps 64 bits from being a limit.

SQLite's ``sum()`` of integers raises when it does not fit 64 bits, but a product that does not fit silently becomes a
floating point number, and so does every sum that it is part of.
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import LiteralString, TypeAlias

from auditord.store.aggregates import WHOLE, Limbs

Pieces: TypeAlias = Sequence[tuple[LiteralString, int]]
"""The factors of a product: columns, and for each by how many bits it is shifted."""


class Arithmetic(Enum):
    """The arithmetic of sums."""

    LIKELY = "likely"
    """Plain integers, but bytes and microseconds are multiplied in pieces of 20 bits and the rest: fast, and enough for
    ordinary amounts."""
    SPLIT = "split"
    """In limbs of at most 32 bits: enough for the sum of two billion numbers of any size."""


class Overflow(Exception):
    """A sum or product did not fit 64 bits."""


@contextmanager
def noticing_overflow() -> Generator[None, None, None]:
    """Inside, SQLite's word for a sum that does not fit becomes :class:`Overflow`."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if str(error) != "integer overflow":
            raise
        raise Overflow from error


def sum_of(number: LiteralString, arithmetic: Arithmetic) -> tuple[Sequence[LiteralString], Limbs]:
    """Columns that sum up a column of whole numbers that are not negative, and what they stand for."""
    if arithmetic is Arithmetic.LIKELY:
        return [f"sum({number})"], WHOLE
    return _split(number), (31, 0)


def whole(number: LiteralString) -> Pieces:
    """Return a column as one piece."""
    return ((number, 0),)


def pieces(number: LiteralString) -> Pieces:
    """A column that is multiplied in pieces: the last 20 bits, and all above them.

    Where an amount of up to 4 TB and a runtime of up to 50 days in microseconds both are, 500,000 products fit a sum.
    """
    return ((f"({number} >> 20)", 20), (f"({number} & 1048575)", 0))


def product_sum(amount: Pieces, runtime: Pieces) -> tuple[Sequence[LiteralString], Limbs]:
    """Columns that sum up the product of both, and what they stand for."""
    products = [(left, right) for left in amount for right in runtime]
    columns: list[LiteralString] = [f"sum({left} * {right})" for (left, _), (right, _) in products]
    return columns, tuple([shift + other for (_, shift), (_, other) in products])


def split_product_sum(amount: LiteralString, runtime: LiteralString) -> tuple[Sequence[LiteralString], Limbs]:
    """Columns that sum up the product of an amount of up to 63 bits and any runtime.

    Runtimes have 59 bits at most (microseconds between the years 1 and 9999), products of halves 62 bits; those are
    split once more, so that each summand has 32 bits at most.
    """
    halves: tuple[tuple[LiteralString, int], ...] = (
        (f"({amount} >> 31) * ({runtime} >> 30)", 61),
        (f"({amount} >> 31) * ({runtime} & 1073741823)", 31),
        (f"({amount} & 2147483647) * ({runtime} >> 30)", 30),
        (f"({amount} & 2147483647) * ({runtime} & 1073741823)", 0),
    )
    columns: list[LiteralString] = [column for product, _ in halves for column in _split(product)]
    return columns, tuple([limb for _, shift in halves for limb in (shift + 31, shift)])


def _split(number: LiteralString) -> list[LiteralString]:
    return [f"sum(({number}) >> 31)", f"sum(({number}) & 2147483647)"]
