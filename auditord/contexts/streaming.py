"""Child processes whose output is read while they print: as much as anybody asked for is in memory, and no more."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from sys import maxsize
from typing import Final, cast

import anyio

from auditord.contexts.command import SILENT_TURNS, STDOUT, TURN, Child, child_environment, command_line, release, start

_PIECE: Final = 2**20
"""Bytes that wait to be taken before the child has to wait, give or take what one read brings."""


@asynccontextmanager
async def stream_command(
    argv: Sequence[str],
    *,
    timeout: timedelta,
    environment: Mapping[str, str] | None = None,
    through: Sequence[str] = (),
    max_output: int | None = None,
) -> AsyncGenerator["Output", None]:
    """See :meth:`auditord_hookspecs.contexts.Context.stream_command`."""
    child = StreamedChild(argv, maxsize if max_output is None else max_output)
    transport = await start(child, command_line(argv, environment, through), child_environment(environment, through))
    try:
        yield Output(child, transport, timeout)
    finally:
        await release(child, transport)


class Output:
    """Implements :class:`auditord_hookspecs.CommandOutput`.

    Args:
        child: what prints.
        transport: its pipes.
        timeout: for how long it may be silent.
    """

    def __init__(self, child: "StreamedChild", transport: asyncio.SubprocessTransport, timeout: timedelta) -> None:
        self._child = child
        self._transport = transport
        self._timeout = timeout

    @property
    def stderr(self) -> bytes:
        """Its last words on standard error so far."""
        return bytes(self._child.stderr)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Pieces of standard output.

        Raises:
            CommandFailed: it was silent for too long, printed too much, or ended with a non-zero exit code.
        """
        while piece := await self._next():
            yield piece
        self._child.result(self._transport.get_returncode())

    async def _next(self) -> bytes:
        with anyio.move_on_after(self._timeout.total_seconds()):
            return await self._child.next_piece()
        seconds = f"{self._timeout.total_seconds():g} s"
        raise self._child.failed(f"was killed after {seconds} without output", timed_out=True)


class StreamedChild(Child):
    """A child whose output is taken away while it prints.

    Args:
        argv: for messages.
        max_output: bytes after which it is killed.
    """

    def __init__(self, argv: Sequence[str], max_output: int) -> None:
        super().__init__(argv, max_output)
        self._taken = 0
        self._transport: asyncio.SubprocessTransport | None = None
        self._news = anyio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport, to make the child wait."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep what arrives, and read no more once it is enough."""
        super().pipe_data_received(fd, data)
        if len(self.stdout) >= _PIECE and (pipe := self._pipe()) is not None:
            pipe.pause_reading()
        self._news.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Wake whoever waits for more."""
        super().pipe_connection_lost(fd, exc)
        self._news.set()

    def process_exited(self) -> None:
        """Wake whoever waits for more."""
        super().process_exited()
        self._news.set()

    def is_too_much(self) -> bool:
        """True once it has printed more than it may."""
        return self._taken + len(self.stdout) > self.max_output

    async def next_piece(self) -> bytes:
        """Output since the last time; nothing when the child has exited and all that it printed was taken.

        Raises:
            CommandFailed: it printed too much.
        """
        silent = 0
        while not self.stdout:
            if self.exited.is_set() and (not self.open_pipes or silent == SILENT_TURNS):
                return b""
            if self.exited.is_set():  # another process may hold the pipe: see Child
                silent += 1
                await anyio.sleep(TURN)
            else:
                self._news = anyio.Event()
                await self._news.wait()
        if self.is_too_much():
            raise self.too_much()
        return self._take()

    def _take(self) -> bytes:
        piece = bytes(self.stdout)
        self._taken += len(piece)
        self.stdout.clear()
        if (pipe := self._pipe()) is not None:
            pipe.resume_reading()
        return piece

    def _pipe(self) -> asyncio.ReadTransport | None:
        """The pipe, while it is open; that of uvloop can wait as well, though by its class it is no ReadTransport."""
        if self._transport is None or STDOUT not in self.open_pipes:
            return None
        return cast("asyncio.ReadTransport | None", self._transport.get_pipe_transport(STDOUT))
