"""The position of an import, in a file that survives a kill and a power cut.

The records are committed before the position is, so that what is read again after a kill is at most what is in the
store already, where its id makes it the same record.
"""

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from auditord.database.durable_files import write_durably
from auditord_hookspecs import AuditordError


class BadPosition(AuditordError):
    """The file that says how far an import came cannot be read or written.

    Remedy:
        give the service's user the folder `imports` of state_dir, or begin anew with --restart: nothing is imported
        twice.
    """


class Progressed(msgspec.Struct, frozen=True):
    """The position of an import.

    Args:
        position: the source's own word for it; None at its beginning.
        written: whether everything is in the store, and only remains to be compared.
    """

    position: str | None = None
    written: bool = False


@dataclass(frozen=True, slots=True)
class PositionFile:
    """The file of a position."""

    path: Path

    @classmethod
    def of(cls, folder: Path, *what: str) -> "PositionFile":
        """The file in a folder for an import that these words identify."""
        name = blake2b("\0".join(what).encode(), digest_size=8).hexdigest()
        return cls(folder / f"{name}.json")

    def read(self) -> Progressed:
        """Read the position that was written last; the beginning if none was.

        Raises:
            BadPosition: it was written by another program.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Progressed)
        except FileNotFoundError:
            return Progressed()
        except (OSError, msgspec.DecodeError) as error:
            raise BadPosition(f"{self.path} cannot be used: {error}; with --restart it is not needed") from error

    def write(self, progressed: Progressed) -> None:
        """Replace it, durably: there is always one whole version.

        Raises:
            BadPosition: it cannot be written.
        """
        try:
            write_durably(self.path, msgspec.json.encode(progressed))
        except OSError as error:
            raise BadPosition(f"{self.path} cannot be written: {error.strerror}") from error

    def forget(self) -> None:
        """Begin at the beginning the next time."""
        self.path.unlink(missing_ok=True)
