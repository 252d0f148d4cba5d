"""The servers of the HTTP benchmarks, as a process: ``http_server.py FOLDER URL``. Prints its ports as a line of JSON.

``record`` is the whole server over a real, durable store and a real spool. Beside it, in the same
process, stand two bare handlers that read the body, validate it and answer 200: ``lean`` behind this server's own
dispatch, and ``bare`` as aiohttp's documentation would have it (an application, its router and its responses).
"""

import asyncio
import gc
import json
import signal
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry

from auditord.config.model import ApiSection
from auditord.ingest import Ingest
from auditord.spool import Spool
from auditord.store.opening import open_store
from auditord.web.answers import STORED
from auditord.web.dispatch import Dispatcher, HttpMetrics, Route
from auditord.web.hosts import HostCheck
from auditord.web.requests import read_body
from auditord.web.server import listening, serve
from auditord_hookspecs.wire import decode_record

API = ApiSection.model_validate({"listen": ["127.0.0.1:0"]})
KEYS = ("site_id", "group_id", "user_id")  # the daemon's default
GRACE = timedelta(seconds=5)


def now() -> datetime:
    """The clock."""
    return datetime.now(UTC)


async def lean(request: web.BaseRequest) -> web.StreamResponse:
    """Read, validate, answer: by this server's own means."""
    decode_record(await read_body(request, API.max_body))
    return STORED


async def bare(request: web.Request) -> web.StreamResponse:
    """Read, validate, answer: by aiohttp's means."""
    decode_record(await request.read())
    return web.Response()


async def start_bare(stack: AsyncExitStack) -> int:
    """Serve :func:`bare` until the stack is left; returns its port."""
    application = web.Application()
    application.router.add_post("/record", bare)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port: int = runner.addresses[0][1]
    return port


async def main(folder: Path, url: str) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url, counted_keys=KEYS))
        spool = await stack.enter_async_context(Spool.opened(folder, now))
        full = serve(
            API,
            Ingest(store, spool, ("local",)),
            registry=CollectorRegistry(),
            now=now,
            grace=GRACE,
        )
        dispatcher = Dispatcher((Route("POST", "/record", lean, None),), HttpMetrics(), HostCheck(()))
        urls = {
            "record": (await stack.enter_async_context(full))[0],
            "lean": (await stack.enter_async_context(listening(dispatcher, API, GRACE)))[0],
        }
        ports = {name: int(url.rpartition(":")[2]) for name, url in urls.items()}
        gc.set_threshold(100_000)  # as the daemon does; so is the next
        gc.freeze()
        sys.stdout.write(json.dumps(ports | {"bare": await start_bare(stack)}) + "\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(Path(sys.argv[1]), sys.argv[2]))
