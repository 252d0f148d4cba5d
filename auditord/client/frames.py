"""Convert records to tables for analysis: one row per record, one column per meta key, component and score.

- ``record_id``: text;
- ``start_time``, ``stop_time``: time in UTC with microseconds; open records have no stop time;
- ``runtime``: whole seconds; missing for open records;
- ``meta.<key>``: list of texts, all values of the key in their order; a text if the key is exploded;
- ``amount.<component>``: integer; the sum if a name occurs more than once, capped to 63 bits;
- ``seconds.Cores``, ``seconds.Memory``, ``seconds.GPU``: integer; amount times runtime, or the total that the record
  has instead (``CoreSeconds`` and so on), capped to 63 bits;
- ``score.<component>.<name>``: float, of the first component of that name.

Values that a record lacks are missing. ``explode`` names meta keys: a record has one row for each value of the key (for
several keys, for each combination), or one row with a missing value. These rows repeat the record's amounts, so drop
duplicates of ``record_id`` before summing amounts.

The libraries are extras of the distribution: ``auditord[arrow]`` and so on.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from auditord.client.exchange import ClientError
from auditord_hookspecs import Record
from auditord_hookspecs.aggregates import compute_held_time
from auditord_hookspecs.records import MAX_AMOUNT
from auditord_hookspecs.vocabulary import TOTALS

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

Columns: TypeAlias = dict[str, list[Any]]  # Any: text, integers, floats, times or None, by the column's kind

_TIMES: Final = ("start_time", "stop_time")
_META: Final = "meta."


class MissingLibrary(ClientError, ImportError):
    """The library for the table is not installed. The message names the extra that includes it.

    Remedy:
        install the extra that the message names.
    """


def to_arrow(  # Any: a pyarrow.Table; the library ships no types
    records: Iterable[Record], *, explode: str | Collection[str] = ()
) -> Any:
    """Convert records to a table of Apache Arrow.

    Raises:
        MissingLibrary: install ``auditord[arrow]``.
    """
    arrow = _library("pyarrow", "arrow")
    columns, kinds = _columns(records, explode)
    types: dict[str, Any] = {  # Any: pyarrow has no types for mypy
        "text": arrow.string(),
        "texts": arrow.list_(arrow.string()),
        "integer": arrow.int64(),
        "float": arrow.float64(),
        "time": arrow.timestamp("us", tz="UTC"),
    }
    return arrow.table({name: arrow.array(values, types[kinds[name]]) for name, values in columns.items()})


def to_pandas(records: Iterable[Record], *, explode: str | Collection[str] = ()) -> "pd.DataFrame":
    """Convert records to a data frame of pandas; integer columns are the nullable ``Int64``.

    Raises:
        MissingLibrary: install ``auditord[pandas]``.
    """
    pandas = _library("pandas", "pandas")
    types = {"text": "object", "texts": "object", "integer": "Int64", "float": "float64", "time": "datetime64[us, UTC]"}
    columns, kinds = _columns(records, explode)
    frame: pd.DataFrame = pandas.DataFrame(
        {name: pandas.Series(values, dtype=types[kinds[name]]) for name, values in columns.items()}
    )
    return frame


def to_polars(records: Iterable[Record], *, explode: str | Collection[str] = ()) -> "pl.DataFrame":
    """Convert records to a data frame of polars.

    Raises:
        MissingLibrary: install ``auditord[polars]``.
    """
    polars = _library("polars", "polars")
    types = {
        "text": polars.String,
        "texts": polars.List(polars.String),
        "integer": polars.Int64,
        "float": polars.Float64,
        "time": polars.Datetime("us", "UTC"),
    }
    columns, kinds = _columns(records, explode)
    frame: pl.DataFrame = polars.DataFrame(columns, schema={name: types[kinds[name]] for name in columns})
    return frame


def _library(name: str, extra: str) -> Any:  # Any: a module that need not be installed
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingLibrary(f"{name} is not installed: pip install 'auditord[{extra}]'") from error


def _kind(column: str, exploded: Collection[str]) -> str:
    if column in _TIMES:
        return "time"
    if column == "runtime" or column.startswith(("amount.", "seconds.")):
        return "integer"
    if column.startswith("score."):
        return "float"
    is_list = column.startswith(_META) and column.removeprefix(_META) not in exploded
    return "texts" if is_list else "text"


def _columns(records: Iterable[Record], explode: str | Collection[str]) -> tuple[Columns, Mapping[str, str]]:
    """Return the columns and their kinds."""
    columns: Columns = {"record_id": [], "start_time": [], "stop_time": [], "runtime": []}
    keys = (explode,) if isinstance(explode, str) else explode
    rows = (row for record in records for row in _rows(record, keys))
    for size, row in enumerate(rows):
        for name, value in row.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = [None] * size
            column.append(value)
        for column in columns.values():
            if len(column) == size:
                column.append(None)
    return columns, {name: _kind(name, keys) for name in columns}


def _rows(record: Record, keys: Collection[str]) -> Iterator[dict[str, Any]]:  # Any: as Columns
    """Yield one row, or one for each combination of the values of these keys."""
    meta = record.meta or {}
    cells: dict[str, Any] = {
        "record_id": record.record_id,
        "start_time": record.start_time,
        "stop_time": record.stop_time,
        "runtime": record.runtime,
    }
    cells |= {f"{_META}{key}": list(values) for key, values in meta.items()}
    for component in record.components:
        name = f"amount.{component.name}"
        cells[name] = min(cells.get(name, 0) + component.amount, MAX_AMOUNT)
        for score in component.scores:
            cells.setdefault(f"score.{component.name}.{score.name}", score.value)
    times = {f"seconds.{name}": compute_held_time(record, name) for name in TOTALS}
    cells |= {name: min(time, MAX_AMOUNT) for name, time in times.items() if time is not None}
    exploded = [key for key in meta if key in keys]
    for values in product(*[meta[key] or (None,) for key in exploded]):
        yield cells | {f"{_META}{key}": value for key, value in zip(exploded, values, strict=True)}
