"""Files of the table that are on the disk once they are closed."""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from auditord.database.durable_files import SyncedFile, make_private_folder

IMPLEMENTATION: Final = "auditord.lake.files.DurableFileIO"
"""The name under which pyiceberg loads it."""


class DurableFileIO(PyArrowFileIO):
    """The file systems of pyarrow; a file in a local one is synchronised before anything refers to it."""

    def new_output(self, location: str) -> PyArrowFile:
        """A file to be written."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":  # object stores keep a file when they have taken it
            return super().new_output(location)
        top = urlparse(self.properties["warehouse"]).path
        return _LocalFile(self.fs_by_scheme(scheme, netloc), location, path, Path(unquote(top)))


class _LocalFile(PyArrowFile):
    def __init__(self, filesystem: Any, location: str, path: str, top: Path) -> None:  # Any: pyarrow ships no types
        super().__init__(location=location, path=path, fs=filesystem)
        self._top = top

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002 pyiceberg's signature
        """Begin to write the file."""
        path = Path(self._path)
        make_private_folder(path.parent)
        folders = [folder for folder in path.parents if folder == self._top or self._top in folder.parents]
        return SyncedFile(path, "w" if overwrite else "x", folders)
