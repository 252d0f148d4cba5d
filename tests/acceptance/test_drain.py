"""The real process, killed again and again while its queue moves into a database that comes and goes."""

import asyncio
import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from auditord.spool import Spool
from tests.api_server import NOW
from tests.ports import free_port
from tests.tcp_proxy import Proxy, proxy

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS, IDS, WRITERS = 6, 12, 6
PATIENCE = 120.0
STARTS = [f"2026-01-01T00:0{minute}:00Z" for minute in range(3)]


class Daemon:
    """A daemon that can be killed and started; clients see it under one port."""

    def __init__(self, folder: Path, store: str, port: int, **api: object) -> None:
        self._file = folder / "auditord.json"
        self._log = folder / "log"
        self.state = folder / "state"
        listening = {"listen": [f"127.0.0.1:{port}"], **api}
        document = {"state_dir": str(self.state), "api": listening, "store": {"url": store}}
        self._file.write_text(json.dumps(document))
        self.url = f"http://127.0.0.1:{port}"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("wb") as log:
            command = (sys.executable, "-m", "auditord", "run", "--config", str(self._file))
            self._process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        async with asyncio.timeout(PATIENCE):
            while "is ready" not in self._log.read_text():
                assert self._process.returncode is None, self._log.read_text()
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """End it as systemd does."""
        assert self._process is not None
        self._process.terminate()
        async with asyncio.timeout(PATIENCE):
            assert await self._process.wait() == 0, self._log.read_text()


class Writers:
    """Clients that post runs of a few ids against each other, and never give up before they are answered."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.accepted: dict[str, set[str]] = defaultdict(set)
        self.answers = 0
        self._enough = asyncio.Event()

    async def write(self, names: list[str]) -> None:
        async with aiohttp.ClientSession(self._url) as session:
            while not self._enough.is_set():
                await self._post(session, random.choice(names), random.choice(STARTS))  # noqa: S311 no secret

    async def _post(self, session: aiohttp.ClientSession, name: str, start: str) -> None:
        one = {"record_id": name, "components": list[object](), "start_time": start, "stop_time": None}
        stopped = {**one, "stop_time": "2026-01-01T01:00:00Z"}
        path, body = random.choice([("/record", stopped), ("/records", [stopped])])  # noqa: S311 the same
        try:
            async with session.post(path, json=body) as answer:
                text = await answer.read()
        except (aiohttp.ClientError, ConnectionError):
            await asyncio.sleep(0.05)
            return
        self.answers += 1
        if answer.status == 200:
            self.accepted[name].add(start)
        else:
            assert text == b"RECORD_EXISTS", text

    async def answered(self, many: int) -> None:
        """Wait until so many further posts were answered."""
        wanted = self.answers + many
        async with asyncio.timeout(PATIENCE):
            while self.answers < wanted:  # noqa: ASYNC110 what is waited for has no event
                await asyncio.sleep(0.005)

    def stop(self) -> None:
        self._enough.set()


@asynccontextmanager
async def writing(url: str, names: list[str]) -> AsyncGenerator[Writers, None]:
    writers = Writers(url)
    async with asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            group.create_task(writers.write(names))
        yield writers
        writers.stop()


async def settled(daemon: Daemon) -> None:
    """Wait until nothing waits any more; nothing may be in quarantine then."""
    async with asyncio.timeout(PATIENCE), Spool.opened_read_only(daemon.state, lambda: NOW) as spool:
        while (await spool.statistics()).queues:  # noqa: ASYNC110 another process sets no event here
            await asyncio.sleep(0.05)
        assert [(entry.source_id, entry.reason) for entry in await spool.quarantine_summaries()] == []


async def stored(daemon: Daemon) -> dict[str, str]:
    async with aiohttp.ClientSession(daemon.url) as session, session.get("/records") as answer:
        assert answer.status == 200
        text = await answer.text()
    found: list[Any] = [json.loads(one) for one in re.sub(r"\}\{", "}\n{", text).splitlines()]
    return {one["record_id"]: one["start_time"] for one in found}


async def one_round(daemon: Daemon, database: Proxy, number: int) -> dict[str, set[str]]:
    """The database goes, posts wait in the spool; it comes back, and the daemon is killed while they move."""
    names = [f"r{number}-{name}" for name in range(IDS)]
    await database.stop()
    async with writing(daemon.url, names) as writers:
        await writers.answered(60)
        await database.start()
        await writers.answered(random.randrange(1, 120))  # noqa: S311 no secret
        await daemon.kill()
        await daemon.start()
        await writers.answered(60)
    await settled(daemon)
    return writers.accepted


async def test_every_acknowledged_run_and_no_other_is_there_after_kills_in_the_middle_of_the_drain(
    tmp_path: Path, new_postgres_url: Callable[[], str]
) -> None:
    address = URL(new_postgres_url())
    accepted: dict[str, set[str]] = {}
    async with proxy(address.port or 5432) as database:
        daemon = Daemon(tmp_path, str(address.with_port(database.port)), free_port())
        await daemon.start()
        try:
            for number in range(ROUNDS):
                accepted |= await one_round(daemon, database, number)
            found = await stored(daemon)
        finally:
            await daemon.kill()
    assert {name: starts for name, starts in accepted.items() if len(starts) > 1} == {}
    assert {name: {found[name]} for name in accepted} == accepted
    assert len(accepted) > ROUNDS * IDS / 2
