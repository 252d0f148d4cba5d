"""Long statements of SQLite, watched from within: they say that they go on, and end when the process is asked to.

SQLite calls the watch every million steps of its machine, in the thread that waits for the statement: nothing else
gets there, neither the event loop nor a handler of signals that belongs to it.
"""

import logging
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from anyio import from_thread

from auditord.errors import MigrationInterrupted

_log: Final = logging.getLogger(__name__)

_STEPS: Final = 1_000_000
"""Steps of SQLite's machine between two looks: some ten milliseconds."""

SAID_EVERY: Final = 30.0
"""Seconds."""

_ASKED_BY: Final = (signal.SIGTERM, signal.SIGINT)


class Watch:
    """The watch over statements, one after the other.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._said = clock()
        self._doing = ""
        self.stopped = False

    def begin(self, doing: str) -> None:
        """Report from now on that this step is running."""
        self._doing, self._began = doing, self._clock()
        self._said = self._began

    def stop(self, *_: object) -> None:
        """Let the statement that runs end, and what it did be undone."""
        self.stopped = True

    def __call__(self) -> bool:
        """Look; the statement ends if it is true."""
        now = self._clock()
        if now - self._said >= SAID_EVERY:
            self._said = now
            _log.info("%s: still at work, for %.0f s now", self._doing, now - self._began)
        return self.stopped or _cancelled()


def _cancelled() -> bool:
    """True in a worker thread whose task has been cancelled."""
    if threading.current_thread() is threading.main_thread():
        return False
    try:
        from_thread.check_cancelled()
    except RuntimeError:
        return False
    except BaseException:  # noqa: BLE001 of the event loop's own kind; raised again by the caller that waits for the thread
        return True
    return False


@contextmanager
def watched(connection: sqlite3.Connection, watch: Watch) -> Generator[None, None, None]:
    """Watch all statements of a connection; in the main thread, signals that ask for the end get it at once.

    Raises:
        MigrationInterrupted: the end was asked for.
    """
    connection.set_progress_handler(watch, _STEPS)
    former: dict[signal.Signals, Any] = {}  # Any: as the signal module types handlers
    if threading.current_thread() is threading.main_thread():
        former = {number: signal.signal(number, watch.stop) for number in _ASKED_BY}
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        raise MigrationInterrupted("the migration was interrupted; nothing has changed") from error
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        connection.set_progress_handler(None, 0)
