"""Streams every record of a store in a process of its own and prints the figures as JSON.

Usage: ``python streaming_child.py FILE``.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from auditord.store.opening import open_store_for_reading
from auditord_hookspecs import RecordQuery


def resident_bytes() -> int:
    """The memory that the process occupies now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def stream_all(path: Path) -> dict[str, float]:
    """Count the records, and watch the memory after every page."""
    async with open_store_for_reading(f"sqlite://{path}") as store:
        async with store.stream(RecordQuery(limit=1_000)) as pages:  # imports and caches have their share before
            async for _ in pages:
                pass
        before = most = resident_bytes()
        records = size = 0
        began = time.perf_counter()
        async with store.stream(RecordQuery()) as pages:
            async for page in pages:
                records += len(page)
                size += sum(map(len, page))
                most = max(most, resident_bytes())
        return {
            "records": records,
            "bytes": size,
            "seconds": time.perf_counter() - began,
            "growth": most - before,
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(stream_all(Path(sys.argv[1])))))  # noqa: T201 the parent reads it
