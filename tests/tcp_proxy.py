"""A TCP proxy that misbehaves on request: it cuts, it stalls, it comes back."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Forwards to a port of this machine. Make one with :func:`proxy`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.port = 0

    async def start(self) -> None:
        """Accept connections, always on the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut every connection and accept none."""
        if self._server is not None:
            self._server.close()
            self.cut()
            await self._server.wait_closed()
            self._server = None

    def cut(self) -> None:
        """Cut every connection, in the middle of whatever passes."""
        for writer in self._writers:
            writer.transport.abort()

    def stall(self) -> None:
        """Forward nothing any more; connections stay."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again."""
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(back)
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        finally:  # also if the loop ends: a transport that nobody closes is blamed on a later test
            writer.transport.abort()
            back.transport.abort()
            self._writers -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def proxy(target: int) -> AsyncGenerator[Proxy, None]:
    """A running proxy; it cuts what is left at the end."""
    running = Proxy(target)
    await running.start()
    try:
        yield running
    finally:
        running.resume()
        await running.stop()
        await asyncio.sleep(0.01)  # the pumps see it
