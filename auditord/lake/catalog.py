"""Access to one Iceberg table: its catalog and its files. Their errors become the daemon's own."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final
from urllib.parse import unquote, urlparse

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    RESTError,
    ValidationException,
)
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import Table
from sqlalchemy import event, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from auditord.database.durable_files import SyncedFile, make_private, make_private_folder
from auditord.errors import StoreUnavailable
from auditord.store.lake import LakeOvertaken

NAMESPACE: Final = "auditord"
"""The namespace of the tables, and pyiceberg's name for the catalog."""

TABLE_PROPERTIES: Final = {
    "format-version": "2",
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


class NoTable(StoreUnavailable):
    """The catalog does not have the table.

    Remedy:
        check lake.catalog in the configuration: it names another catalog, or the table was dropped; in that case
        restore the catalog from its backup.
    """


class CatalogTable:
    """A table and its catalog, which is connected on first use.

    Args:
        name: the table's name in the catalog.
        location: URL of the folder with the table's files.
        properties: catalog properties for pyiceberg's ``load_catalog``.
    """

    def __init__(self, name: str, location: str, properties: Mapping[str, str]) -> None:
        self.location: Final = location
        self._name = name
        self._properties = properties
        self._catalog: Catalog | None = None
        self._closed = False
        self._lock = Lock()

    def close(self) -> None:
        """Close the catalog for good."""
        with self._lock:
            self._closed = True
            if self._catalog is not None:
                self._catalog.close()
                self._catalog = None

    def connected(self) -> Catalog:
        """Return the catalog, connecting to it on first use.

        Raises:
            StoreUnavailable: the table was closed, for example while the thread of an abandoned query still runs.
        """
        with self._lock:
            if self._closed:
                raise StoreUnavailable(f"The lake {self.location} was closed.")
            if self._catalog is None:
                _make_file(self._properties["uri"])
                self._catalog = load_catalog(
                    NAMESPACE, **{**self._properties, "py-io-impl": f"{__name__}.DurableFileIO"}
                )
                if isinstance(self._catalog, SqlCatalog):
                    event.listen(self._catalog.engine, "checkin", self._end_if_closed)
            return self._catalog

    def _end_if_closed(self, _connection: Any, entry: ConnectionPoolEntry) -> None:  # Any: a driver's connection
        """Close the connection of a thread that outlives :meth:`close`. The pool would keep it open."""
        if self._closed:
            entry.invalidate()

    @contextmanager
    def loaded(self) -> Generator[Table, None, None]:
        """Yield the freshly loaded table, and translate errors as :meth:`translated` does."""
        with self.translated():
            yield self.connected().load_table(self._name)

    @contextmanager
    def translated(self) -> Generator[None, None, None]:
        """Translate errors of the catalog and the files.

        Raises:
            LakeOvertaken: another process committed in the meantime.
            StoreUnavailable: any other error.
        """
        try:
            yield
        except (CommitFailedException, ValidationException) as error:
            raise LakeOvertaken(f"Another process has written to the lake {self.location}: try again.") from error
        except NoSuchTableError as error:
            raise NoTable(
                f"The catalog of the lake {self.location} has no table {self._name}: restore the catalog, or correct "
                "lake.catalog."
            ) from error
        except (OSError, SQLAlchemyError, RESTError, CommitStateUnknownException) as error:
            text = str(error).partition("\n")[0]
            raise StoreUnavailable(
                f"The lake {self.location} is not available: see lake.catalog and lake.warehouse ({text})."
            ) from error


def _make_file(url: str) -> None:
    """Create the private file of a SQLite catalog. SQLite itself would apply the umask."""
    if url.startswith("sqlite:") and (file := make_url(url).database):
        with suppress(OSError):  # SQLite has the better error message
            make_private(Path(file))


class DurableFileIO(PyArrowFileIO):
    """pyarrow's file systems, except that local files are synchronised to disk before anything refers to them."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write to."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":  # object stores make a file durable before they acknowledge it
            return super().new_output(location)
        top = urlparse(self.properties["warehouse"]).path
        return _LocalFile(self.fs_by_scheme(scheme, netloc), location, path, Path(unquote(top)))


class _LocalFile(PyArrowFile):
    def __init__(self, filesystem: Any, location: str, path: str, top: Path) -> None:  # Any: pyarrow ships no types
        super().__init__(location=location, path=path, fs=filesystem)
        self._top = top

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002 pyiceberg's signature
        path = Path(self._path)
        make_private_folder(path.parent)
        folders = [folder for folder in path.parents if folder.is_relative_to(self._top)]
        return SyncedFile(path, "w" if overwrite else "x", folders)
