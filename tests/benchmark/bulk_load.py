"""A load generator for one machine: posts every line of a file to ``/records``, prints one line of JSON.

Run as a process of its own, not in the server's: ``bulk_load.py PORT CONNECTIONS FILE``. The requests are made before
the clock starts.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

_HEAD = "POST /records HTTP/1.1\r\nhost: x\r\nuser-agent: auditor-client/0.11.2\r\ncontent-type: application/json\r\n"


def make_request(body: bytes) -> bytes:
    """One request."""
    return f"{_HEAD}content-length: {len(body)}\r\n\r\n".encode() + body


async def post(port: int, requests: Iterator[bytes]) -> int:
    """Post one request after the other; returns how many answers were not 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    failures = 0
    for request in requests:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")  # the answer to a bulk has no body
        failures += not head.startswith(b"HTTP/1.1 200 ")
    writer.close()
    await writer.wait_closed()
    return failures


async def load(port: int, connections: int, requests: list[bytes]) -> dict[str, float]:
    """Post all of it; returns the seconds that it took."""
    waiting = iter(requests)
    begun = time.perf_counter()
    failures = await asyncio.gather(*(post(port, waiting) for _ in range(connections)))
    return {"requests": len(requests), "seconds": time.perf_counter() - begun, "failures": sum(failures)}


if __name__ == "__main__":
    _port, _connections, _file = sys.argv[1:]
    prepared = [make_request(line) for line in Path(_file).read_bytes().splitlines()]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(load(int(_port), int(_connections), prepared))
    sys.stdout.write(json.dumps(result) + "\n")
