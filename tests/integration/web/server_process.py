"""The HTTP server over a real store and a real spool: ``server_process.py FOLDER STORE DUPLICATES LISTEN…``.

A process of its own, since AUDITOR's blocking client holds Python's global lock while it waits for an answer. Prints
its URLs as one line of JSON once clients can connect, and ends on SIGTERM.
"""

import asyncio
import gc
import json
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import uvloop
from prometheus_client import CollectorRegistry

from auditord.config.model import ApiSection
from auditord.ingest import Ingest
from auditord.spool import Spool
from auditord.store.opening import open_store
from auditord.web.server import serve


def now() -> datetime:
    """The clock."""
    return datetime.now(UTC)


async def main(folder: Path, url: str, duplicates: str, listen: list[str]) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    api = ApiSection.model_validate({"listen": listen, "duplicates": duplicates})
    async with (
        open_store(url, counted_keys=("site_id",)) as store,
        Spool.opened(folder, now) as spool,
        serve(
            api,
            Ingest(store, spool, ("local",)),
            registry=CollectorRegistry(),
            now=now,
            grace=timedelta(seconds=5),
        ) as urls,
    ):
        gc.freeze()  # as the daemon does
        sys.stdout.write(json.dumps(list(urls)) + "\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
