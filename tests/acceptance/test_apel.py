"""The real process reports to a broker over TLS, is killed between a message and its state, and reports again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from auditord.ingest import StoreSink
from auditord.store.opening import open_store
from auditord_hookspecs import Component, Insert, Record, Score
from auditord_hookspecs.months import Month
from tests.ams_broker import AmsBroker, ams_broker
from tests.builtin.apel.apel_receiver import Receiver
from tests.builtin.apel.apel_settings import apel_section
from tests.host_certificates import Authority, HostFiles

pytestmark = pytest.mark.anyio

NOW = datetime.now(UTC)
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("AUDITORD_")}
SITES = {"SITE-A": ["a"], "SITE-B": ["b"]}


def job(number: int, days_ago: float) -> Record:
    stop = NOW - timedelta(days=days_ago)
    components = (Component("Cores", 2, (Score("HEPscore23", 10.0),)), Component("TotalCPU", 5_000, ()))
    meta: dict[str, tuple[str, ...]] = {"site_id": ("ab"[number % 2],), "voms": ("Jörg",), "submit_host": ("ce",)}
    return Record(f"job-{number}", stop - timedelta(hours=1), components, stop, meta)


@dataclass
class Site:
    """A configuration, and commands on it."""

    folder: Path

    def configure(self, ams: AmsBroker, host: HostFiles) -> None:
        broker = ams.for_client(host)
        section = apel_section(
            sites=SITES,
            since=Month.of(NOW).plus(-3).start,
            certificate=host.certificate,
            key=host.key,
            ca_path=str(ams.authority.file),
            auth_url=broker.token_url,
            ams_url=broker.publish_url(),
        )
        document = {"state_dir": str(self.folder / "state"), "plugins": {"apel": {"kind": "apel", **section}}}
        (self.folder / "auditord.yml").write_text(json.dumps(document))

    def command(self, *arguments: str) -> Sequence[str]:
        file = str(self.folder / "auditord.yml")
        return [sys.executable, "-m", "auditord", "apel", *arguments, "--config", file]

    async def run(self, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        return await anyio.run_process(self.command(*arguments), check=False, env=ENVIRONMENT)

    async def store(self, records: Sequence[Record]) -> None:
        (self.folder / "state").mkdir(exist_ok=True)
        async with open_store(f"sqlite://{self.folder / 'state/records.db'}", counted_keys=()) as store:
            assert await StoreSink(store, lambda: NOW).deliver([Insert(record) for record in records]) == {}


def received(ams: AmsBroker) -> dict[str, int]:
    """The jobs that APEL has, by site."""
    receiver = Receiver()
    for text in ams.texts():
        receiver.take(text)
    jobs = dict.fromkeys(SITES, 0)
    for row in receiver.rows.values():
        assert row["VO"] == "Jörg"
        jobs[row["Site"]] += int(row["NumberOfJobs"])
    return jobs


async def test_a_kill_between_message_and_state_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    authority, site = Authority(tmp_path), Site(tmp_path)
    host = authority.issue("ce.example.org")
    await site.store([job(number, number * 6) for number in range(12)])
    async with ams_broker(authority) as ams:
        site.configure(ams, host)
        process = await anyio.open_process(site.command("publish"), stdout=None, stderr=None, env=ENVIRONMENT)

        def kill(number: int) -> int | None:
            if number == 4:
                os.kill(process.pid, signal.SIGKILL)
            return -1 if number == 4 else None  # the message was taken, nobody hears of it

        ams.fault = kill
        async with process:
            assert await process.wait() == -signal.SIGKILL
        assert len(ams.published) == 4
        await site.store([job(12, 33)])
        ams.fault = lambda _: None
        again = await site.run("publish")
        assert again.returncode == 0, again.stderr.decode()
        assert received(ams) == {"SITE-A": 7, "SITE-B": 6}

        overview = (await site.run("show")).stdout.decode().splitlines()
        lines = [line.split() for line in overview[1:]]
        assert sum(int(line[2]) for line in lines) == 13
        assert all(line[2] == line[3] == line[4] and line[5] == "0" for line in lines)
