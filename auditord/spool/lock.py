"""The lock of the state folder: one owner, whose advisory lock ends with the process."""

import fcntl
import logging
import os
import stat
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from auditord.database.durable_files import make_private_folder
from auditord.database.memory import file_turn
from auditord.errors import StateInUse
from auditord_hookspecs.folders import user_name

LOCK: Final = "auditord.lock"

_log: Final = logging.getLogger(__name__)


@contextmanager
def own(state_dir: Path) -> Generator[None, None, None]:
    """Hold the lock of the state folder, which is created if missing.

    Raises:
        StateInUse: another process owns it (its id is named), the folder cannot be used, or it belongs to another user
            and this user is root.
    """
    with suppress(OSError):  # the folder will be created, or the fault is reported below
        uid = state_dir.stat().st_uid
        if os.geteuid() == 0 and uid != 0:  # that user could not write the files that root would leave
            raise StateInUse(
                f"the state folder {state_dir} belongs to user {user_name(uid)}, who could not use files made by root: "
                f"run this as that user, for example runuser -u {user_name(uid)} -- auditord …"
            )
    try:
        make_private_folder(state_dir)
        descriptor = os.open(state_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise StateInUse(
            f"the state folder {state_dir} cannot be used: {error.strerror}; user id {os.getuid()} must be allowed to "
            "write to it (or name another folder as state_dir)"
        ) from error
    if state_dir.stat().st_mode & stat.S_IWOTH:
        # No error: a container's volume may be open to all and yet be unreachable.
        _log.warning("every user may write to %s, which contains tokens: chmod o-w it, and check its files", state_dir)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = _pid(descriptor)
            who = "another process" if pid is None else f"process {pid}"
            raise StateInUse(
                f"the state folder {state_dir} is in use by {who}: stop that daemon first, or name another state_dir"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        # The file is not removed: otherwise two processes could each lock a file of this name.
        os.close(descriptor)


def owner(state_dir: Path) -> int | None:
    """Return the process id of the folder's owner; None if no process owns it."""
    try:
        descriptor = os.open(state_dir / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid(descriptor)
    finally:
        os.close(descriptor)
    return None


def handing_over(state_dir: Path) -> AbstractAsyncContextManager[None]:
    """Hold the lock under which entries move from the record store's outbox to the spool.

    A backup holds it from its snapshot of the spool to that of the store. Otherwise an entry that moves between the two
    snapshots would be in neither.

    Raises:
        StoreUnavailable: the lock file cannot be created.
    """
    return file_turn(state_dir / "spool.db", "hand-over", lambda: None)


def _pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdigit() else None
