"""A load generator for one machine: keeps a number of connections busy with requests, prints one line of JSON.

Run as a process of its own, not in the server's: ``http_load.py PORT PATH CONNECTIONS SECONDS PREFIX``. It posts new
records or, if the path has a ``%d``, reads at the paths with the numbers below a thousand in its place.
It speaks just enough HTTP/1.1 to cost little: an answer comes as a whole, and is empty or one object.
"""

import asyncio
import json
import sys
import time
from itertools import count
from random import getrandbits, randrange
from typing import cast

import uvloop

RECORD = (
    '{"record_id":"%s","meta":{"site_id":["site-%d"],"group_id":["group-%d"],"user_id":["user-%d"]},"components":'
    '[{"name":"Cores","amount":8,"scores":[{"name":"HEPscore23","value":18.5}]},{"name":"Memory","amount":16384,'
    '"scores":[]}],"start_time":"2024-02-03T04:05:06.079043Z","stop_time":"2024-02-03T06:05:06Z"}'
)

READ = 1_000
_HEADERS = "host: x\r\nuser-agent: auditor-client/0.11.2\r\naccept: */*\r\n"
_PATIENCE_SECONDS = 30


class Connection(asyncio.Protocol):
    """Sends the next request as soon as the answer to the last one is there."""

    def __init__(self, path: str, prefix: str, numbers: "count[int]", finished: asyncio.Event) -> None:
        self._path = path
        self._prefix = prefix
        self._numbers = numbers
        self._finished = finished
        self.closed = asyncio.get_running_loop().create_future()
        self._sent = 0.0
        self.latencies: list[float] = []
        self.failures = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are not subclasses of it
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._read() if "%d" in self._path else self._post())

    def _read(self) -> bytes:
        return f"GET {self._path % randrange(READ)} HTTP/1.1\r\n{_HEADERS}\r\n".encode()  # noqa: S311 no secret

    def _post(self) -> bytes:
        number = next(self._numbers)
        body = RECORD % (f"{self._prefix}-{getrandbits(64):016x}", number % 7, number % 40, number % 900)
        head = f"POST {self._path} HTTP/1.1\r\n{_HEADERS}content-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()

    def data_received(self, data: bytes) -> None:
        self.latencies.append(time.perf_counter() - self._sent)
        if not (data.startswith(b"HTTP/1.1 200 ") and data.endswith((b"\r\n\r\n", b"}"))):
            self.failures += 1
        if not self._finished.is_set():
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.failures += exc is not None
        self.closed.set_result(None)


async def load(port: int, path: str, connections: int, seconds: float, prefix: str) -> dict[str, float]:
    """Post or read for so long; returns the rate, the latencies in milliseconds and how many answers were not 200."""
    loop = asyncio.get_running_loop()
    finished = asyncio.Event()
    numbers = count()
    begun = time.perf_counter()
    protocols: list[Connection] = []
    for _ in range(connections):
        _, protocol = await loop.create_connection(
            lambda: Connection(path, prefix, numbers, finished), "127.0.0.1", port
        )
        protocols.append(protocol)
    await asyncio.sleep(seconds)
    finished.set()
    elapsed = time.perf_counter() - begun
    async with asyncio.timeout(_PATIENCE_SECONDS):
        await asyncio.gather(*(protocol.closed for protocol in protocols))
    latencies = sorted(latency for protocol in protocols for latency in protocol.latencies)
    return {
        "requests": len(latencies),
        "per_second": len(latencies) / elapsed,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1e3,
        "failures": sum(protocol.failures for protocol in protocols),
    }


if __name__ == "__main__":
    _port, _path, _connections, _seconds, _prefix = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(load(int(_port), _path, int(_connections), float(_seconds), _prefix))
    sys.stdout.write(json.dumps(result) + "\n")
