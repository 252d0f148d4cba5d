"""Importers: the records of another accounting system, read page by page for ``auditord import KIND``.

The host does everything but the reading. It writes the records into the record store, where no sender forwards them,
and saves the position behind each page, so that a killed import continues. Then it reads the source a second time and
compares each row with the stored record.
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
        where: how an operator finds it in the source, such as ``row with id 7``.
        text: the row as the source has it.
    """

    where: str
    text: bytes


class ImportPage(msgspec.Struct, frozen=True):
    """Some thousand rows of a source.

    Args:
        records: the record that each row becomes; an :class:`InvalidRecord` says why a row is none.
        position: a later reading continues behind this page from here; only the importer knows its form.
        fraction: the part of the source that has been read so far, from 0 to 1.
        row: gives a row by its place in ``records``; called for rows that the report lists.
        runtimes: how many seconds the source says that each record ran, None where it says nothing; empty if it says
            nothing of any. The runtime here always follows from the times, so the report lists rows that differ.
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
        """The source and the options that change records, for messages and as their provenance; without secrets.

        A saved position is used again only by an importer of the same name.
        """
        ...

    def pages(self, position: str | None) -> AsyncGenerator[ImportPage, None]:
        """Read all rows, or those behind a position; rows before it may come again.

        Write ``async def`` and ``yield``. An iteration that ends without an error counts as complete.

        Raises:
            AuditordError: the source cannot be read, or not to its end.
        """
        ...

    def remarks(self) -> Sequence[str | Table]:
        """Return what the operator should know of the records that the last reading gave; the report shows it."""
        ...


class ImporterKind(msgspec.Struct, Generic[S], frozen=True):
    """A kind of accounting system whose records ``auditord import KIND`` takes over.

    Args:
        name: what stands for KIND.
        title: what people call the system.
        config: the model of the command's options: ``milliseconds_until`` is the option ``--milliseconds-until``, and
            an option without a default is an argument. A tuple is given several times, a ``bool`` is a switch.
        open: makes the importer; nothing is asked of the source yet.
        help: what the command says about its arguments and options as a whole.
        import_config: turns a file of the system's server into ours, for ``auditord config import``, or returns None if
            it is not one. It gets the document, and the documents of all other files of that command.
        import_environment: turns variables of the environment of the system's server into options of the daemon. It
            gets the variables whose names begin with the kind's name in capitals and ``_``, and what the files of the
            configuration say. In the result, ``comments`` name the variables of each option (a default has none), and
            ``dropped`` those without a counterpart. Raises ValueError where that server would refuse a value. The host
            has a list of the prefixes that it looks for before it loads hook modules: ``AUDITOR_`` alone today.
    """

    name: str
    title: str
    config: type[S]
    open: Callable[[S, Context], Importer]
    help: str = ""
    import_config: Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], ImportedConfig | None] | None = None
    import_environment: Callable[[Mapping[str, str], Mapping[str, Any]], ImportedConfig] | None = None
