"""Importers: the records of another accounting system, read page by page for ``auditord import KIND``.

An importer only reads; the host does the rest. It writes the records to the record store, where no sender forwards
them, and saves the position after each page, so that a killed import continues there. Then it reads the source a second
time and compares each row with the stored record.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from auditord_hookspecs.config import Section
from auditord_hookspecs.contexts import Context
from auditord_hookspecs.errors import InvalidRecord
from auditord_hookspecs.kinds import ImportedConfig
from auditord_hookspecs.panels import Table
from auditord_hookspecs.records import Record

S = TypeVar("S", bound=Section)


class ImportRow(NamedTuple):
    """A row of a source, for the report.

    Args:
        where: the place of the row in the source, for the operator, such as ``row with id 7``.
        text: the unchanged row.
    """

    where: str
    text: bytes


class ImportPage(msgspec.Struct, frozen=True):
    """A page of a source: some thousand rows.

    Args:
        records: the record of each row, or an :class:`InvalidRecord` that says why the row cannot be converted.
        position: the position after this page, from which a later reading continues. Only the importer knows its form.
        fraction: the fraction of the source that has been read so far, from 0 to 1.
        row: returns a row by its index in ``records``; called for rows that the report lists.
        runtimes: the runtime of each record in seconds according to the source, None if unknown; empty if the source
            has no runtimes. Our runtimes are computed from the times, so the report lists rows that differ.
    """

    records: Sequence[Record | InvalidRecord]
    position: str
    fraction: float
    row: Callable[[int], ImportRow]
    runtimes: Sequence[int | None] = ()


class Importer(Protocol):
    """A source of records."""

    @property
    def name(self) -> str:
        """The source and the options that change records, for messages and as provenance. It must not contain secrets.

        Only an importer of the same name continues from a saved position.
        """
        ...

    def pages(self, position: str | None) -> AsyncGenerator[ImportPage, None]:
        """Read all rows, or those after a position. Rows before the position may be repeated.

        Write ``async def`` and ``yield``. An iteration that ends without an error counts as complete.

        Raises:
            AuditordError: the source cannot be read to its end.
        """
        ...

    def remarks(self) -> Sequence[str | Table]:
        """Return remarks on the records of the last reading, which the report shows to the operator."""
        ...


class ImporterKind(msgspec.Struct, Generic[S], frozen=True):
    """A kind of accounting system whose records ``auditord import KIND`` imports.

    Args:
        name: the name that replaces KIND in the command.
        title: the system's name for people.
        config: the model of the command's options: ``milliseconds_until`` becomes ``--milliseconds-until``, and a field
            without a default becomes an argument. A tuple can be given several times; a ``bool`` is a switch.
        open: makes the importer. It does not access the source yet.
        help: the command's help about its arguments and options as a whole.
        import_config: converts a file of the system's server to ours, for ``auditord config import``; returns None if
            it is not such a file. It gets the document, and the documents of all other files of that command.
        import_environment: converts environment variables of the system's server to options of the daemon. It gets the
            variables whose names begin with the kind's name in capitals and ``_``, and the values of the configuration
            files. In the result, ``comments`` name the variables of each option (a default has none), and ``dropped``
            has the variables without a counterpart. Raises ValueError if that server would refuse a value. The host has
            a list of the prefixes to look for before it loads hook modules, at present only ``AUDITOR_``.
    """

    name: str
    title: str
    config: type[S]
    open: Callable[[S, Context], Importer]
    help: str = ""
    import_config: Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], ImportedConfig | None] | None = None
    import_environment: Callable[[Mapping[str, str], Mapping[str, Any]], ImportedConfig] | None = None
