"""The note of a restore that is under way: until it is done, nothing may take the files for a pair."""

from pathlib import Path
from typing import Final

import msgspec

from auditord.database.durable_files import synced, write_durably
from auditord.errors import StoreMismatch

FILE: Final = "restore.json"


class Unfinished(msgspec.Struct, frozen=True):
    """A restore that has begun to move files.

    Args:
        backup: the folder that it is made from.
        aside: the name under which it puts the previous files aside.
        present: whether a record store was there, and a spool.
    """

    backup: str
    aside: str
    present: tuple[bool, bool]


def unfinished(state_dir: Path) -> Unfinished | None:
    """Return the interrupted restore into a state folder, or None."""
    try:
        return msgspec.json.decode((state_dir / FILE).read_bytes(), type=Unfinished)
    except FileNotFoundError:
        return None


def begin(state_dir: Path, note: Unfinished) -> None:
    """Block every use of the state folder until :func:`end`."""
    write_durably(state_dir / FILE, msgspec.json.encode(note))


def end(state_dir: Path) -> None:
    """Let the state folder be used again."""
    (state_dir / FILE).unlink()
    synced(state_dir)


def refuse_unfinished(state_dir: Path) -> None:
    """Return unless a restore was interrupted.

    Raises:
        StoreMismatch: one was.
    """
    if (note := unfinished(state_dir)) is not None:
        raise StoreMismatch(
            f"A restore into {state_dir} was interrupted: complete it with `auditord restore {note.backup}`. "
            f"(The previous files are in a folder {note.aside}, or still in their place.)"
        )
