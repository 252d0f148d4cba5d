"""Sums of integers in SQLite's SQL, and what keeps 64 bits from being a limit.

SQLite's ``sum()`` of integers raises when it does not fit 64 bits, but a product that does not fit silently becomes a
floating point number, and so does every sum that it is part of.
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import LiteralString

from auditord.store.aggregates import WHOLE, Limbs


class Arithmetic(Enum):
    """How numbers are summed up."""

    PLAIN = "plain"
    """As they are: fast, and enough unless amounts are bytes."""
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
    if arithmetic is Arithmetic.PLAIN:
        return [f"sum({number})"], WHOLE
    return _split(number), (31, 0)


def product_sum(
    amount: LiteralString, runtime: LiteralString, arithmetic: Arithmetic
) -> tuple[Sequence[LiteralString], Limbs]:
    """The same for the product of an amount of up to 63 bits and a runtime.

    Runtimes have 59 bits at most (microseconds between the years 1 and 9999), products of halves 62 bits; those are
    split once more, so that what is summed up has 32 bits at most.
    """
    if arithmetic is Arithmetic.PLAIN:
        return [f"sum({amount} * {runtime})"], WHOLE
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
