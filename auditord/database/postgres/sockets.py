"""Looking at connections from below, where the driver waits for answers that may never come."""

import asyncio
import os
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager

from psycopg import AsyncConnection
from psycopg.rows import TupleRow


@contextmanager
def limited(
    connection: AsyncConnection[TupleRow], seconds: float | None, noticed: Callable[[float], None] | None = None
) -> Generator[None, None, None]:
    """Cut the connection if the block takes longer: callers that wait for the server then see it as lost.

    A statement's own time limit does not help when the server or the network no longer answers.

    Args:
        connection: is used inside.
        seconds: the limit; None for none.
        noticed: called with it before the connection is cut.
    """
    if seconds is None:
        yield
        return
    alarm = asyncio.get_running_loop().call_later(seconds, _hang_up, connection, seconds, noticed)
    try:
        yield
    finally:
        alarm.cancel()


async def require_open(connection: AsyncConnection[TupleRow]) -> None:
    """Find out that the server has closed an idle connection; it is asked only if there is a sign of it.

    Raises:
        psycopg.OperationalError: it has.
    """
    if _is_silent(connection):
        return
    await connection.execute("")  # a farewell, or a mere notice: this reads it


def _is_silent(connection: AsyncConnection[TupleRow]) -> bool:
    with _socket(connection) as probe:
        probe.setblocking(False)  # noqa: FBT003 the standard library's
        try:
            probe.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True  # as nearly always
        except OSError:
            return False
    return False


def _hang_up(connection: AsyncConnection[TupleRow], seconds: float, noticed: Callable[[float], None] | None) -> None:
    if noticed is not None:
        noticed(seconds)
    if not connection.closed:
        # Closing it under the driver would leave the event loop with a number that means another file tomorrow.
        with _socket(connection) as other_end:
            other_end.shutdown(socket.SHUT_RDWR)


def _socket(connection: AsyncConnection[TupleRow]) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.fileno()))
