"""Questions as Trino's client gets them, and its answers; a real Trino is asked in tests/integration/lake."""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import pytest
import trino

from auditord.errors import StoreUnavailable
from auditord.lake.engines import Chosen, Work
from auditord.lake.trino_engine import Trino
from auditord_hookspecs import AggregateQuery, ComponentUsage
from auditord_hookspecs.query import AllOf, Comparison, RuntimeCompares, TimeCompares, TimeField

FIRST = datetime(1, 1, 1, tzinfo=UTC)
QUERY = AggregateQuery(
    AllOf((TimeCompares(TimeField.START, Comparison.GTE, FIRST), RuntimeCompares(Comparison.LT, 10**40))),
    usage=(ComponentUsage("Cores"),),
)
TABLE: Any = None
ROW = [0, None, None, 2, 10, 20, Decimal(30), Decimal(4), Decimal(1), Decimal(5), Decimal(7)]
"""Part, two texts of scores, records, first and last stop, runtime; cores, both pieces of the product, core-seconds."""


@pytest.fixture
def cursor(monkeypatch: pytest.MonkeyPatch) -> Mock:
    made = Mock()
    made.fetchmany.side_effect = [[ROW], []]
    monkeypatch.setattr(trino.dbapi, "connect", Mock(return_value=Mock(cursor=Mock(return_value=made))))
    return made


def asked(cursor: Mock) -> tuple[str, Sequence[object]]:
    sql, parameters = cursor.execute.call_args.args
    return sql, parameters


def test_a_question_names_table_and_snapshot_and_writes_early_years_whole(cursor: Mock) -> None:
    Trino("https://me@host:8443/my-catalog").sums(TABLE, QUERY, Chosen(42, "site"), Work())
    sql, parameters = asked(cursor)
    assert """FROM "my-catalog"."auditord"."lake" FOR VERSION AS OF BIGINT '42'""" in sql
    assert "started_at >= CAST(? AS TIMESTAMP(6) WITH TIME ZONE)" in sql
    assert (sql.count("?"), "%s" in sql) == (len(parameters), False)
    assert {"site", "0001-01-01 00:00:00 UTC", Decimal(2**63)} <= set(parameters)


def test_decimals_are_whole_numbers(cursor: Mock) -> None:
    (group,) = Trino("https://me@host:8443/hive").sums(TABLE, QUERY, Chosen(42), Work()).groups
    (cores,) = group.usage
    found = (group.records, group.runtime, cores.sums.amount, cores.sums.amount_runtime)
    assert found == (2, 30, 4, (1 << 31) + 5 + 7)
    assert {type(each) for each in found} == {int}
    cursor.cancel.assert_not_called()


def test_a_fault_is_said_in_a_line(cursor: Mock) -> None:
    error = {
        "message": "Catalog 'hive' not found\nand more",
        "errorType": "USER_ERROR",
        "errorName": "CATALOG_NOT_FOUND",
    }
    cursor.execute.side_effect = trino.exceptions.TrinoUserError(error)
    with pytest.raises(StoreUnavailable, match=r"see lake\.trino \(Catalog 'hive' not found\)"):
        Trino("http://me@host:8080/hive").sums(TABLE, QUERY, Chosen(42), Work())
