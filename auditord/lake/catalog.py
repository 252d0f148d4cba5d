"""Access to one Iceberg table: its catalog and its files. Their errors become the daemon's own.

All programs that write to the lake can change the table's metadata, and pyiceberg obeys it: a property names a class to
import, an endpoint for our credentials, or a folder for our files, and every path may point to another file of this
host. So a loaded table is refused if it has properties other than the known ones, or another location, and each file is
opened with the operator's settings and below that location.
"""

import os
import re
import sqlite3
import zlib
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from threading import Lock
from time import monotonic
from typing import Any, Final
from urllib.parse import urlparse

from msgspec import MsgspecError
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    ResolveError,
    RESTError,
    ValidationError,
    ValidationException,
)
from pyiceberg.io import FileIO, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from sqlalchemy import event, make_url
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry
from typing_extensions import override

from auditord.database.durable_files import SyncedFile, make_private, make_private_folder
from auditord.lake.manifests import LakeRefused, refuse_large
from auditord.lake.schema import PARTITIONS, SCHEMA
from auditord.store.lake import LakeOvertaken, LakeUnavailable

NAMESPACE: Final = "auditord"
"""The namespace of the table, and pyiceberg's name for the catalog."""

TABLE: Final = f"{NAMESPACE}.lake"
"""The table's name in the catalog."""

_METRICS: Final = "write.metadata.metrics.column."
_BOUNDED: Final = ("daemon", "record_id", "site", "user_group", "user_name")
_UNBOUNDED: Final = ("principal", "agent", "document")

# Bounds of texts are whole, or there are none. By default they are cut to 16 characters: pyiceberg cannot make the
# upper bound if the last one is U+D7FF, which any sender can put into a name, and daemons would not be told apart.
TABLE_PROPERTIES: Final = {
    "format-version": "2",
    **{f"{_METRICS}{column}": "full" for column in _BOUNDED},
    **{f"{_METRICS}{column}": "counts" for column in _UNBOUNDED},
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "3",  # a tenth smaller than with level 1, and as fast
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # Each manifest costs every query some milliseconds.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "10",
    # A concurrent commit may have made this one wrong, so it must not be retried unchanged.
    "commit.retry.num-retries": "0",
}
"""Properties of a new table."""

_ALLOWED_PROPERTIES: Final = re.compile(
    r"write\.parquet\.compression-(codec|level)=[a-z0-9]{1,12}"
    r"|write\.metadata\.(delete-after-commit\.enabled|previous-versions-max)=[a-z0-9]{1,6}"
    rf"|{re.escape(_METRICS)}(({'|'.join(_BOUNDED)})=full|({'|'.join(_UNBOUNDED)})=counts)"
    r"|commit\.manifest(-merge\.enabled|\.min-count-to-merge)=[a-z0-9]{1,6}"
    r"|commit\.retry\.num-retries=0"
    # pyiceberg does not use these, only other engines and catalogs do.
    r"|(owner|comment|gc\.enabled|(history|read|write\.distribution-mode|write\.spark|nessie|polaris)(\..*)?)=.*",
    re.DOTALL,
)
"""Matches NAME=VALUE of the properties that a table may have."""

_COLUMNS: Final = assign_fresh_schema_ids(SCHEMA).fields
"""The columns that every table has, with the numbers that pyiceberg gives them in a new table."""

_FILE: Final = "auditord.file"
"""The attribute of a connection with the file that it has opened."""
_PATIENCE: Final = 30.0
"""The longest time of a transaction on a SQLite catalog in seconds. A view that another program made can be endless."""
_STEPS: Final = 100_000
"""Instructions of SQLite's virtual machine between two looks at the clock: about a millisecond."""

_LOCATION: Final = "auditord.location"
"""The property of :class:`LakeFileIO` with the table's location."""

_DAMAGED: Final = (
    EOFError,
    LookupError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    SystemError,
    ResolveError,
    TypeError,
    zlib.error,
)
"""Errors of pyiceberg's reader of Avro for a damaged manifest, besides ValueError."""

_CREDENTIALS: Final = re.compile(r"s3\.(access-key-id|secret-access-key|session-token|endpoint|region)")
"""Properties for the access to files that a REST catalog may hand out, unless the operator has set them."""


class NoTable(LakeUnavailable):
    """The catalog does not have the table.

    Remedy:
        check lake.catalog in the configuration: it names another catalog, or the table was dropped; in that case
        restore the catalog from its backup.
    """


class CatalogTable:
    """A table and its catalog, which is connected on first use.

    Args:
        properties: catalog properties for pyiceberg's ``load_catalog``.
        warehouse: URL of the folder for the table's files.
    """

    def __init__(self, properties: Mapping[str, str], warehouse: str) -> None:
        self.location: Final = f"{warehouse.rstrip('/')}/{TABLE.replace('.', '/')}"
        self._properties = properties
        self._catalog: Catalog | None = None
        self._closed = False
        self._lock = Lock()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._catalog is not None:
                self._catalog.close()
                self._catalog = None

    def connect(self) -> Catalog:
        """Return the catalog, connecting to it on first use.

        Raises:
            StoreUnavailable: the table was closed, for example while the thread of an abandoned query still runs.
        """
        with self._lock:
            if self._closed:
                raise LakeUnavailable(f"The lake {self.location} was closed.")
            if self._catalog is None:
                self._check_file()
                make = _LakeRestCatalog if self._properties["type"] == "rest" else _LakeSqlCatalog
                files = {"py-io-impl": f"{__name__}.{LakeFileIO.__name__}", _LOCATION: self.location}
                self._catalog = make(NAMESPACE, **{**self._properties, **files})
                if isinstance(self._catalog, SqlCatalog):
                    event.listen(self._catalog.engine, "checkin", self._end_if_closed)
                    event.listen(self._catalog.engine, "do_connect", self._check_file)
                    event.listen(self._catalog.engine, "connect", self._note_file)
                    event.listen(self._catalog.engine, "checkout", self._leave_replaced)
                    event.listen(self._catalog.engine, "checkout", self._limit)
            return self._catalog

    def _check_file(self, *_: object) -> None:
        """Create the private file of a SQLite catalog, since SQLite itself would apply the umask.

        Raises:
            LakeRefused: it is not a regular file, or has triggers or views. A link that another writer made would lead
                to a database of this daemon, such as its record store. A trigger would run, or hang, inside our
                statements.
        """
        if not self._properties["uri"].startswith("sqlite:"):
            return
        file = make_url(self._properties["uri"]).database
        if file and os.path.lexists(file) and not S_ISREG(os.lstat(file).st_mode):
            raise LakeRefused(
                f"The catalog {file} is a link or no regular file: find out who replaced it, and restore it from its "
                "backup; or name the link's target in lake.catalog."
            )
        if not file:
            return
        with suppress(OSError):  # SQLite has the better error message
            make_private(Path(file))
        found = list[tuple[str]]()
        with suppress(sqlite3.Error), closing(sqlite3.connect(file)) as connection:
            query = "SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')"
            found = connection.execute(query).fetchall()
        if found:
            names = ", ".join(repr(name[:80]) for (name,) in found[:5])
            raise LakeRefused(
                f"The catalog {file} has triggers or views, which auditord does not make: {names}. Find out who made "
                "them, and drop them."
            )

    def _limit(self, connection: Any, *_: object) -> None:  # Any: a driver's connection
        """Check the file again, and interrupt statements on a SQLite catalog that do not end in time."""
        self._check_file()
        if self._properties["uri"].startswith("sqlite:"):
            until = monotonic() + _PATIENCE
            connection.set_progress_handler(lambda: monotonic() > until, _STEPS)

    def _end_if_closed(self, _connection: Any, entry: ConnectionPoolEntry) -> None:  # Any: a driver's connection
        """Close the connection of a thread that outlives :meth:`close`. The pool would keep it open."""
        if self._closed:
            entry.invalidate()

    def _identify_file(self) -> tuple[int, int] | None:
        """Return the device and inode of a SQLite catalog; None for others, and if the file is missing."""
        uri = make_url(self._properties["uri"])
        if uri.get_backend_name() != "sqlite" or not uri.database:
            return None
        try:
            status = Path(uri.database).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _note_file(self, _connection: Any, entry: ConnectionPoolEntry) -> None:  # Any: a driver's connection
        entry.info[_FILE] = self._identify_file()

    def _leave_replaced(self, _connection: Any, entry: ConnectionPoolEntry, _proxy: object) -> None:  # Any: the same
        """Make the pool connect again if the file was replaced. Commits to the former file would be lost."""
        former, file = entry.info.get(_FILE), self._identify_file()
        if former is not None and file is None:  # a new, empty one would be in the way of the backup
            raise LakeUnavailable(f"The catalog of the lake {self.location} is missing: restore it from its backup.")
        if former != file:
            raise DisconnectionError

    @contextmanager
    def load(self) -> Generator[Table, None, None]:
        """Yield the freshly loaded table, and translate errors as :meth:`translate_errors` does."""
        with self.translate_errors():
            yield self.connect().load_table(TABLE)

    @contextmanager
    def translate_errors(self) -> Generator[None, None, None]:
        """Translate errors of the catalog and the files.

        Raises:
            LakeOvertaken: another process committed in the meantime.
            StoreUnavailable: any other error. That a property could end the process (``sys.exit``) is one too.
        """
        try:
            yield
        except (CommitFailedException, ValidationException) as error:
            raise LakeOvertaken(f"Another process has written to the lake {self.location}: try again.") from error
        except NoSuchTableError as error:
            raise NoTable(
                f"The catalog of the lake {self.location} has no table {TABLE}: restore the catalog, or correct "
                "lake.catalog."
            ) from error
        except (OSError, SQLAlchemyError, RESTError, CommitStateUnknownException) as error:
            text = str(error).partition("\n")[0]
            raise LakeUnavailable(
                f"The lake {self.location} is not available: see lake.catalog and lake.warehouse ({text})."
            ) from error
        except (ValidationError, ValueError, NotImplementedError, MsgspecError, SystemExit, *_DAMAGED) as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise LakeRefused(
                f"The metadata of the lake {self.location} cannot be used: restore the catalog from its backup "
                f"({text:.200})."
            ) from error


class _LakeSqlCatalog(SqlCatalog):
    """A SQL catalog that opens files with the operator's settings only, and refuses a table that would steer us."""

    @override
    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return LakeFileIO(self.properties)

    @override
    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        where = orm_table.metadata_location or ""
        if where.endswith(".parquet"):  # these have no limit of size
            raise LakeRefused(f"The catalog names {where!r:.200} as metadata: restore the catalog from its backup.")
        return super()._convert_orm_to_iceberg(orm_table)

    @override
    def load_table(self, identifier: str | Identifier) -> Table:
        table = super().load_table(identifier)
        _refuse_steering(table, self.properties[_LOCATION])
        return table


class _LakeRestCatalog(RestCatalog):
    """The same for a REST catalog, which may also hand out credentials for the files."""

    _credentials: Properties = EMPTY_DICT

    @override
    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        given = self._resolve_storage_credentials(table_response.storage_credentials, table_response.metadata_location)
        offered = {**table_response.config, **given}
        self._credentials = {name: value for name, value in offered.items() if _CREDENTIALS.fullmatch(name)}
        return super()._response_to_table(identifier_tuple, table_response)

    @override
    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return LakeFileIO({**self._credentials, **self.properties})

    @override
    def load_table(self, identifier: str | Identifier) -> Table:
        table: Table = super().load_table(identifier)
        _refuse_steering(table, self.properties[_LOCATION])
        return table


def _refuse_steering(table: Table, location: str) -> None:
    """Raise LakeRefused if the table's metadata would steer this process."""
    unknown = [name for name, value in table.properties.items() if not _ALLOWED_PROPERTIES.fullmatch(f"{name}={value}")]
    if unknown:
        names = ", ".join(repr(name[:80]) for name in sorted(unknown)[:5])
        raise LakeRefused(
            f"The table of the lake {location} has properties or values that could steer this daemon: {names}. "
            "Find out who set them, and remove them with another engine (ALTER TABLE … UNSET TBLPROPERTIES in Spark)."
        )
    columns = {field.name: (field.field_id, field.field_type) for field in table.schema().fields}
    changed = [field.name for field in _COLUMNS if columns.get(field.name) != (field.field_id, field.field_type)]
    if changed:
        raise LakeRefused(
            f"The table of the lake {location} has columns that were removed, renamed or exchanged, or have another "
            f"type: {', '.join(changed)}. Find out who changed them, and restore the catalog from its backup."
        )
    known = [(field.source_id, field.transform) for field in PARTITIONS.fields]
    foreign = {
        field.name
        for spec in table.specs().values()
        for field in spec.fields
        if (field.source_id, field.transform) not in known and not isinstance(field.transform, VoidTransform)
    }
    if foreign:  # queries would skip the files of the partitions
        raise LakeRefused(
            f"The table of the lake {location} is partitioned by something else than the month of stop_time and the "
            f"site: {', '.join(sorted(foreign)):.200}. Find out who changed this, and restore the catalog from its "
            "backup."
        )
    main = table.metadata.refs.get("main")
    if main is not None and main.snapshot_id != table.metadata.current_snapshot_id:
        raise LakeRefused(
            f"The table of the lake {location} has two newest snapshots, {main.snapshot_id} of its branch main and "
            f"{table.metadata.current_snapshot_id}: find out who changed its metadata, and restore the catalog."
        )
    if table.location().rstrip("/") != location.rstrip("/"):
        raise LakeRefused(
            f"The table of the lake is at {table.location()!r:.200}, not at {location}: correct lake.warehouse; or, if "
            "the table was moved, restore the catalog."
        )


class LakeFileIO(PyArrowFileIO):
    """pyarrow's file systems, restricted to files below the table's location.

    Local files are synchronised to disk before anything refers to them.
    """

    @staticmethod
    @override
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Return (scheme, host or bucket, path) of a file.

        Raises:
            LakeRefused: the file is not below the table's location, is behind a symbolic link that another writer made,
                or is a FIFO or a device, which would block its reader.
        """
        parsed = PyArrowFileIO.parse_location(location, properties)
        top = PyArrowFileIO.parse_location(properties[_LOCATION], properties)
        inside = parsed[:2] == top[:2] and f"{parsed[2]}/".startswith(f"{top[2].rstrip('/')}/")
        steps = {".", ".."}.intersection(parsed[2].split("/"))
        if inside and not steps and top[0] == "file":
            warehouse = urlparse(properties["warehouse"]).path  # the operator's, who may use links
            expected = Path(os.path.realpath(warehouse), os.path.relpath(parsed[2], warehouse))
            inside = os.path.realpath(parsed[2]) == str(expected)
            if inside:  # nothing behind a foreign link is touched
                with suppress(FileNotFoundError, NotADirectoryError):
                    mode = Path(parsed[2]).stat().st_mode
                    inside = S_ISREG(mode) or S_ISDIR(mode)
        if not inside or steps:
            raise LakeRefused(
                f"The table of the lake {properties[_LOCATION]} refers to {location!r:.200}, which is not one of its "
                "files, or a link or no regular file: find out who added it, and roll the table back to an earlier "
                "snapshot."
            )
        return parsed

    @override
    def new_input(self, location: str) -> PyArrowFile:
        file = super().new_input(location)
        if location.endswith(".parquet"):
            return file
        refuse_large(file)
        return file

    @override
    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":  # object stores make a file durable before they acknowledge it
            return super().new_output(location)
        top = urlparse(self.properties["warehouse"]).path
        return _LocalFile(self.fs_by_scheme(scheme, netloc), location, path, Path(top))


class _LocalFile(PyArrowFile):
    def __init__(self, filesystem: Any, location: str, path: str, top: Path) -> None:  # Any: pyarrow ships no types
        super().__init__(location=location, path=path, fs=filesystem)
        self._top = top

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002 pyiceberg's signature
        path = Path(self._path)
        make_private_folder(path.parent)
        folders = [folder for folder in path.parents if folder.is_relative_to(self._top)]
        return SyncedFile(path, "w" if overwrite else "x", folders)
