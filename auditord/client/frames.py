"""Records as tables, for analysis: one row per record, one column per meta key, component and score.

- ``record_id``: text;
- ``start_time``, ``stop_time``: time in UTC with microseconds; the stop time is missing while the record is open;
- ``runtime``: whole seconds; missing while it is open;
- ``meta.<key>``: text, the first value under the key;
- ``amount.<component>``: integer, summed where a name occurs more than once (and no more than 63 bits);
- ``score.<component>.<name>``: float, of the first component of that name.

What a record does not have is missing. The libraries are extras of the distribution: ``auditord[arrow]`` and so on.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from auditord.client.errors import ClientError
from auditord_hookspecs import Record
from auditord_hookspecs.records import MAX_AMOUNT

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

Columns: TypeAlias = dict[str, list[Any]]  # Any: text, integers, floats, times or None, by the column's kind

_TIMES: Final = ("start_time", "stop_time")


class MissingLibrary(ClientError, ImportError):
    """The library that makes the table is not installed; the text names the extra that brings it."""


def to_arrow(records: Iterable[Record]) -> Any:  # Any: a pyarrow.Table; the library ships no types
    """The records as a table of Apache Arrow.

    Raises:
        MissingLibrary: install ``auditord[arrow]``.
    """
    arrow = _library("pyarrow", "arrow")
    columns = _columns(records)
    types: dict[str, Any] = {  # Any: pyarrow's types, of which mypy knows nothing
        "text": arrow.string(),
        "integer": arrow.int64(),
        "float": arrow.float64(),
        "time": arrow.timestamp("us", tz="UTC"),
    }
    return arrow.table({name: arrow.array(values, types[_kind(name)]) for name, values in columns.items()})


def to_pandas(records: Iterable[Record]) -> "pd.DataFrame":
    """The records as a data frame of pandas; integers are ``Int64``, which can be missing.

    Raises:
        MissingLibrary: install ``auditord[pandas]``.
    """
    pandas = _library("pandas", "pandas")
    types = {"text": "object", "integer": "Int64", "float": "float64", "time": "datetime64[us, UTC]"}
    columns = _columns(records)
    frame: pd.DataFrame = pandas.DataFrame(
        {name: pandas.Series(values, dtype=types[_kind(name)]) for name, values in columns.items()}
    )
    return frame


def to_polars(records: Iterable[Record]) -> "pl.DataFrame":
    """The records as a data frame of polars.

    Raises:
        MissingLibrary: install ``auditord[polars]``.
    """
    polars = _library("polars", "polars")
    types = {
        "text": polars.String,
        "integer": polars.Int64,
        "float": polars.Float64,
        "time": polars.Datetime("us", "UTC"),
    }
    columns = _columns(records)
    frame: pl.DataFrame = polars.DataFrame(columns, schema={name: types[_kind(name)] for name in columns})
    return frame


def _library(name: str, extra: str) -> Any:  # Any: a module that need not be installed
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingLibrary(f"{name} is not installed: pip install 'auditord[{extra}]'") from error


def _kind(column: str) -> str:
    if column in _TIMES:
        return "time"
    if column == "runtime" or column.startswith("amount."):
        return "integer"
    return "float" if column.startswith("score.") else "text"


def _columns(records: Iterable[Record]) -> Columns:
    columns: Columns = {"record_id": [], "start_time": [], "stop_time": [], "runtime": []}
    for size, record in enumerate(records):
        for name, value in _cells(record).items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = [None] * size
            column.append(value)
        for column in columns.values():
            if len(column) == size:
                column.append(None)
    return columns


def _cells(record: Record) -> dict[str, Any]:  # Any: as Columns
    cells: dict[str, Any] = {
        "record_id": record.record_id,
        "start_time": record.start_time,
        "stop_time": record.stop_time,
        "runtime": record.runtime,
    }
    for key, values in (record.meta or {}).items():
        cells[f"meta.{key}"] = values[0] if values else None
    for component in record.components:
        name = f"amount.{component.name}"
        cells[name] = min(cells.get(name, 0) + component.amount, MAX_AMOUNT)
        for score in component.scores:
            cells.setdefault(f"score.{component.name}.{score.name}", score.value)
    return cells
