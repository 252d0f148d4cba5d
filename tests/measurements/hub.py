"""A hub with many sites: ``python tests/measurements/hub.py [--sites 100] [--rate 1000] [--seconds 600] …``.

One daemon is the hub. Each site has a token and a role of its own, forwards its records with the built-in sender and
reports its sums each minute, as a daemon does; only the spool in between is a list. One site begins with the records of
a month that it could not forward. Printed are the time from a record's end to its acknowledgement, for the others and
while that site drains, and whether the hub has in the end what each site says that it has.
"""

import argparse
import asyncio
import json
import logging
import sys
import time
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import quantiles
from subprocess import Popen, run
from tempfile import TemporaryDirectory
from typing import Final

from auditord.client import AsyncClient
from auditord.client.site_reports import DaySums, SiteReport
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_builtin.remote.delivery import RemoteSender
from auditord_hookspecs import Component, Insert, Record
from tests.measurements.throughput import Daemon, port_of

BATCH: Final = 500
REPORT_SECONDS: Final = 60
CORES: Final = 8
_LOG: Final = logging.LoggerAdapter(logging.getLogger("hub"), {})


@dataclass(slots=True)
class Site:
    """A site with its queue.

    Args:
        name: of the site.
        client: towards the hub.
        sums: over all of its records, by day.
        queue: records with the moments at which they were put in.
        lags: seconds until each batch's first record was acknowledged.
        made: how many records it has made.
    """

    name: str
    client: AsyncClient
    sums: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    queue: deque[tuple[float, Record]] = field(default_factory=deque[tuple[float, Record]])
    lags: list[float] = field(default_factory=list[float])
    made: int = 0

    def make(self, records: int, stop: datetime) -> None:
        """Let jobs end."""
        for _ in range(records):
            self.made += 1
            runtime = 60 + self.made % 3_600
            meta: dict[str, tuple[str, ...]] = {
                "site_id": (self.name,),
                "group_id": (f"group{self.made % 7}",),
                "user_id": (f"u{self.made % 60}",),
            }
            components = (Component("Cores", CORES, ()), Component("Memory", 2**34, ()))
            record_id, start = f"{self.name}-{self.made}", stop - timedelta(seconds=runtime)
            self.queue.append((time.monotonic(), Record(record_id, start, components, stop, meta)))
            day = stop.date().isoformat()
            count, total = self.sums.get(day, (0, 0))
            self.sums[day] = (count + 1, total + runtime)

    async def send(self, ended: asyncio.Event) -> None:
        """Forward what is in the queue until nothing more comes."""
        sender = RemoteSender(self.client, _LOG, open_records=False, batch_size=BATCH)
        while self.queue or not ended.is_set():
            batch = [self.queue[at] for at in range(min(len(self.queue), BATCH))]
            await sender.send([Insert(record, None) for _, record in batch])
            for _ in batch:
                self.queue.popleft()
            if batch:
                self.lags.append(time.monotonic() - batch[0][0])
            else:
                await asyncio.sleep(0.1)

    async def report(self) -> tuple[int, int]:
        """Report; returns how many records are missing, and how many there are too many."""
        days = [
            DaySums(self.name, datetime.fromisoformat(day).date(), count, runtime, runtime * CORES)
            for day, (count, runtime) in self.sums.items()
        ]
        first_day = min(each.day for each in days)
        answer = await self.client.report_site(self.name, SiteReport(datetime.now(UTC), first_day, days))
        return answer.missing, answer.extra


async def load(sites: list[Site], rate: int, seconds: int, late: int) -> None:
    """Let the sites work."""
    ended, begun = asyncio.Event(), time.monotonic()
    now = datetime.now(UTC)
    for back in range(30):
        sites[0].make(late // 30, now - timedelta(days=30 - back))
    sending = [asyncio.create_task(site.send(ended)) for site in sites]
    drained: float | None = None
    for second in range(seconds):
        for number, site in enumerate(sites):
            site.make((second + 1) * rate // len(sites) - second * rate // len(sites), datetime.now(UTC))
            if second % REPORT_SECONDS == number % REPORT_SECONDS:
                await site.report()
        if drained is None and len(sites[0].queue) < BATCH:
            drained = time.monotonic() - begun
        await asyncio.sleep(max(0.0, begun + second + 1 - time.monotonic()))
    ended.set()
    await asyncio.gather(*sending)
    missing, extra = map(sum, zip(*[await site.report() for site in sites], strict=True))
    lags = [lag for site in sites[1:] for lag in site.lags]
    cut = quantiles(lags, n=100)
    drain = "more" if drained is None else f"{drained:.0f}"
    sys.stdout.write(
        f"{len(sites)} sites, {sum(site.made for site in sites):,} records in {time.monotonic() - begun:.0f} s; "
        f"{late:,} of them of one site that was a month late and drained after {drain} s\n"
        "from a record's end to its acknowledgement, at the other sites: "
        f"median {cut[49]:.2f} s, 99 % {cut[98]:.2f} s, most {max(lags):.2f} s\n"
        f"missing at the hub: {missing}, too many: {extra}\n"
    )


def configure(folder: Path, names: list[str], store_url: str | None) -> list[str]:
    """Write the hub's configuration and make a token for each site; returns these."""
    roles = {f"of_{name}": {"permissions": ["write", "update", "read"], "sites": [name]} for name in names}
    document = {
        "state_dir": str(folder / "state"),
        "api": {"listen": ["127.0.0.1:0"]},
        "access": {"roles": roles},
        "authenticators": {"tokens": {"kind": "tokens"}},
        **({} if store_url is None else {"store": {"url": store_url}}),
    }
    (folder / "auditord.yml").write_text(json.dumps(document))
    (folder / "state").mkdir(mode=0o700)
    made = [new_token(name, [f"of_{name}"], datetime.now(UTC), None) for name in names]
    TokenFile(folder / "state").change(lambda _: [stored for stored, _ in made])
    return [token for _, token in made]


async def measure(daemon: Daemon, names: list[str], tokens: list[str], options: argparse.Namespace) -> None:
    """Load the hub, and print what it took."""
    before = daemon.cpu()
    async with AsyncExitStack() as stack:
        sites: list[Site] = []
        for name, token in zip(names, tokens, strict=True):
            client = AsyncClient(f"http://127.0.0.1:{daemon.port}", token=token)
            sites.append(Site(name, await stack.enter_async_context(client)))
        await load(sites, options.rate, options.seconds, options.late)
    cpu, made = daemon.cpu() - before, sum(site.made for site in sites)
    sys.stdout.write(f"the hub: {cpu:.0f} s of CPU time, {cpu / made * 1e6:.0f} µs a record\n")


def main() -> None:
    """Read the options, run the hub."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--rate", type=int, default=1_000, help="records a second of all sites together")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--late", type=int, default=200_000, help="records of the site that was a month late")
    parser.add_argument("--store", help="URL of an empty PostgreSQL database; by default SQLite")
    options = parser.parse_args()
    names = [f"site{number}" for number in range(options.sites)]
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokens = configure(folder, names, options.store)
        command = [sys.executable, "-m", "auditord", "--config", str(folder / "auditord.yml")]
        if options.store:
            run([*command, "database", "migrate"], check=True)
        with (folder / "log").open("w") as log, Popen([*command, "run"], stderr=log) as process:
            try:
                asyncio.run(measure(Daemon(port_of(folder / "log"), process.pid), names, tokens, options))
            finally:
                status = Path(f"/proc/{process.pid}/status").read_text()
                sys.stdout.write(f"its memory at most: {int(status.split('VmHWM:')[1].split()[0]) // 1024} MiB\n")
                process.terminate()


if __name__ == "__main__":
    main()
