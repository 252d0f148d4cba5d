from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord_builtin.kubernetes.amounts import parse_quantity
from auditord_hookspecs import InvalidRecord


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("2", "2"),
        ("0.5", "0.5"),
        ("1.5Gi", str(3 * 2**29)),
        ("3m", "0.003"),
        ("250u", "0.00025"),
        ("1n", "0.000000001"),
        ("3k", "3000"),
        ("3Ki", "3072"),
        ("2M", "2000000"),
        ("2Mi", str(2**21)),
        ("4G", "4000000000"),
        ("1T", str(10**12)),
        ("1Ti", str(2**40)),
        ("1P", str(10**15)),
        ("1Pi", str(2**50)),
        ("1E", str(10**18)),
        ("1Ei", str(2**60)),
        ("1E3", "1000"),
        ("12e6", "12000000"),
        ("1e-3", "0.001"),
        ("1.5e+3", "1500"),
        (".5", "0.5"),
        ("5.", "5"),
        ("+1", "1"),
        ("-1", "-1"),
        ("129e6", "129000000"),
        ("123Mi", str(123 * 2**20)),
    ],
)
def test_the_whole_grammar(text: str, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize(
    "text", ["", "x", "1 Gi", "1gi", "1KI", "1K", "Gi", ".", "1..2", "1e", "1e999", "0x10", "१", "nan", "1iB", "1Mi2"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRecord, match="not a quantity"):
        parse_quantity(text)


@given(st.text(max_size=20))
def test_no_text_does_anything_else(text: str) -> None:
    with suppress(InvalidRecord):
        assert parse_quantity(text).is_finite()
