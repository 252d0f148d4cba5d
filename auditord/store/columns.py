"""The columns of the table of records. The statements and rows of both databases are derived from this description.

In ``.sql`` files, a name in braces, such as ``{record_columns}``, stands for a list of columns
(:data:`POSTGRES_LISTS`, :data:`SQLITE_LISTS`, :mod:`auditord.store.statements`). Migrations are plain SQL; a test
compares them with this module.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any, Final, LiteralString

from auditord.database.instants import EPOCH, MICROSECOND

_PARAMETERS: Final = "pending, record, row, labels, amounts"
"""A :class:`auditord.store.rows.PendingRecord`, and its parts."""


class Part(Enum):
    """The part of a row that has a value. Rows share labels and amounts, so their columns are computed once."""

    OWN = "own"
    LABELS = "labels"
    AMOUNTS = "amounts"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of records.

    Args:
        name: the name in both databases.
        type: the type in PostgreSQL. In SQLite it is TEXT for text, else INTEGER.
        value: the Python expression for the value; see :func:`compile_function`.
        sqlite: the expression for SQLite, if it differs; None if SQLite computes the column.
        in_sqlite: whether SQLite has the column.
        part: the part of the row that has the value.
        redacted: whether the column changes when meta keys are removed from a record.
        removed: whether former versions keep the column; needed if a query reads it.
        key: the meta key whose first value the column has. Unless ``more`` is set, the key has no other values.
        older: the key that is used if a record does not have ``key``.
        has_few_values: whether there are so few values that PostgreSQL reads the column instead of the index on meta.
        in_cells: whether the cells of roll-ups and the lake also have the column. They keep other keys in meta.
        component: the component whose amounts the column sums up.
    """

    name: LiteralString
    type: LiteralString
    value: LiteralString
    _: KW_ONLY
    sqlite: LiteralString | None = ""
    in_sqlite: bool = True
    part: Part = Part.OWN
    redacted: bool = False
    removed: bool = True
    key: str | None = None
    older: str | None = None
    has_few_values: bool = False
    in_cells: bool = False
    component: str | None = None


def _label(
    name: LiteralString, key: str, older: str | None = None, *, in_cells: bool = False, few: bool = False
) -> Column:
    return Column(
        name, "text", f"labels.{name}", part=Part.LABELS, redacted=True, key=key, older=older, has_few_values=few,
        in_cells=in_cells,
    )  # fmt: skip


def _amount(name: LiteralString, component: str | None, type_: LiteralString = "bigint") -> Column:
    return Column(name, type_, f"amounts.{name}", part=Part.AMOUNTS, component=component)


COLUMNS: Final = (
    Column("start_time", "timestamptz", "record.start_time", sqlite="row.start_time"),
    Column("content", "bigint", "row.content", redacted=True, removed=False),
    Column(
        "received_at", "timestamptz", "pending.provenance.received_at",
        sqlite="(pending.provenance.received_at - EPOCH) // MICROSECOND", removed=False,
    ),
    Column("origin_id", "integer", "pending.origin"),
    Column("stop_time", "timestamptz", "record.stop_time", sqlite="row.stop_time"),
    Column("runtime", "bigint", "record.runtime", sqlite=None),
    Column("record_id", "text", "row.record_id"),
    Column("more", "boolean", "row.more", redacted=True),
    _amount("others", None, "smallint"),
    _amount("cores", "Cores"),
    _amount("memory", "Memory"),
    _amount("gpu", "GPU"),
    _amount("total_cpu", "TotalCPU"),
    _amount("core_seconds", "CoreSeconds"),
    _amount("memory_seconds", "MemorySeconds"),
    _amount("gpu_seconds", "GPUSeconds"),
    Column("score_set", "integer", "pending.score_set"),
    _label("site", "site_id", "site", in_cells=True, few=True),
    _label("user_group", "group_id", "group", in_cells=True),
    _label("user_name", "user_id", "user", in_cells=True),
    Column("meta", "jsonb", "labels.text", in_sqlite=False, part=Part.LABELS, redacted=True),
    Column("document", "text", "row.document", redacted=True),
)  # fmt: skip
"""The columns that a new record is written with, in the order of :mod:`auditord.store.postgres.copied_rows`:
``start_time`` to ``more``, the amounts, ``score_set``, the labels, ``document``. A row also has ``updated_at`` and its
position in the feed."""

SQLITE_COLUMNS: Final = tuple([each for each in COLUMNS if each.in_sqlite])

SQLITE_VALUES: Final[Mapping[LiteralString, LiteralString]] = {
    each.name: each.sqlite or each.value for each in SQLITE_COLUMNS if each.sqlite is not None
}
"""The expressions for the columns that SQLite does not compute, by name."""

POSTGRES_VALUES: Final[Mapping[LiteralString, LiteralString]] = {each.name: each.value for each in COLUMNS}
"""The expressions for PostgreSQL, by name of the column."""

META_COLUMNS: Final[Mapping[str, LiteralString]] = {each.key: each.name for each in COLUMNS if each.key is not None}
"""Columns for the first value of meta keys. They are complete if ``more`` is not set."""

CELL_META_COLUMNS: Final[Mapping[str, LiteralString]] = {
    each.key: each.name for each in COLUMNS if each.key is not None and each.in_cells
}
"""The part of :data:`META_COLUMNS` that the cells of roll-ups and the lake also have."""

OLDER_KEYS: Final = frozenset([each.older for each in COLUMNS if each.older is not None])
"""The names that older records use for these keys. ``more`` is set for every record that has one of them."""

COLUMNS_OF_TWO_KEYS: Final[Mapping[tuple[str, ...], LiteralString]] = {
    (each.key, each.older): each.name for each in COLUMNS if each.key and each.older
}
"""Columns by their key and older key: their value is the first one under the key, or else under the older key."""

KEYS_OF_FEW_VALUES: Final = frozenset([each.key for each in COLUMNS if each.key is not None and each.has_few_values])

AMOUNT_COLUMNS: Final[Mapping[str, LiteralString]] = {
    each.component: each.name for each in COLUMNS if each.component is not None
}
"""Columns for the amounts of components. They are complete if ``more`` is not set."""


def compile_function(
    expression: str, parameters: str = _PARAMETERS, **names: object
) -> Callable[..., Any]:  # Any: of any type
    """Compile an expression over the values of columns into a function.

    The function runs for every record. It takes half the time of ``attrgetter``, which looks up labels and amounts
    again for each column.

    Args:
        expression: made from :data:`COLUMNS`, never from user input.
        parameters: the names of the function's parameters.
        names: other names that the expression uses.
    """
    names |= {"EPOCH": EPOCH, "MICROSECOND": MICROSECOND}
    made: Callable[..., Any] = eval(f"lambda {parameters}: {expression}", names)  # noqa: S307 see above
    return made


def _lists(
    columns: Sequence[Column], written: Collection[LiteralString], new: LiteralString
) -> Mapping[str, LiteralString]:
    """Return the lists of columns for a database's ``.sql`` files, by name.

    Args:
        columns: the columns of the database.
        written: the names of the columns that the database does not compute.
        new: the prefix of the name of a new value.
    """
    changed: dict[LiteralString, LiteralString] = {name: name for name in written if name != "record_id"}
    changed["updated_at"] = changed.pop("received_at")
    redacted: list[LiteralString] = [each.name for each in columns if each.redacted]
    return {
        "record_columns": ", ".join(written),
        "record_types": ", ".join([f"{each.name} {each.type}" for each in columns]),
        "new_values": ", ".join([f"{new}{name}" for name in written]),
        "overwritten": ", ".join([f"{name} = {new}{value}" for name, value in changed.items()]),
        "redacted": ", ".join([f"{name} = {new}{name}" for name in redacted]),
        "removed_columns": ", ".join([each.name for each in columns if each.removed]),
    }


POSTGRES_LISTS: Final = _lists(COLUMNS, POSTGRES_VALUES, "changed.")
"""Lists for the SQL of PostgreSQL. New values are columns of a table ``changed``."""

SQLITE_LISTS: Final = _lists(SQLITE_COLUMNS, SQLITE_VALUES, ":")
"""Lists for the SQL of SQLite. New values are parameters."""
