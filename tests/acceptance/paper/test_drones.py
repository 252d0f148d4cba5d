"""The AUDITOR paper's opportunistic sites: TARDIS's drones on one server, Slurm's jobs on another, put together by the
client; and what drones provided in 14 days turned into priorities of partitions. Both servers are real daemons.
"""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from auditord.client import Client, to_pandas
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord_hookspecs import AggregateQuery, Component, ComponentUsage, MetaValue, Record, Score

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
PROVIDERS: Final = {"bonn": "part_a", "freiburg": "part_b", "karlsruhe": "part_c"}
CORES: Final = {"bonn": 8, "freiburg": 24, "karlsruhe": 64}
DRONES_EACH: Final = {"bonn": 40, "freiburg": 25, "karlsruhe": 10}
WINDOW: Final = 14 * DAY


@dataclass(frozen=True)
class Drone:
    """A drone of TARDIS; without a stop it still runs."""

    provider: str
    number: int
    start: datetime
    stop: datetime | None

    @property
    def name(self) -> str:
        return f"{self.provider}-{self.number:04}"

    @property
    def cores(self) -> int:
        return CORES[self.provider]

    def available(self) -> Record:
        """The file that TARDIS's plugin writes when the drone is up."""
        scores = (Score("HEPSPEC", 12.5), Score("HEPscore23", 12.1))
        meta: dict[str, tuple[str, ...]] = {
            "site_id": (self.provider,),
            "group_id": (self.provider,),
            "user_id": ("tardis",),
        }
        return Record(self.name, self.start, (Component("Cores", self.cores, scores),), meta=meta)


def drones(now: datetime) -> Iterator[Drone]:
    """Some ended before the window, some began before it and ended in it, some run on."""
    for place, (provider, count) in enumerate(DRONES_EACH.items()):
        for number in range(count):
            start = now - timedelta(hours=11 + number * 17 + place * 5)
            life = timedelta(hours=24 + number * 7 % 60)
            stop = start + life
            yield Drone(provider, number, start, stop if stop < now - HOUR else None)


def slurm_jobs(all_drones: Sequence[Drone], now: datetime) -> Iterator[Record]:
    """Jobs of a quarter of a drone's cores; the name of the drone is the node that Slurm tells."""
    for drone in all_drones:
        end = drone.stop or now - HOUR
        for quarter in range(3):  # the fourth stays idle
            begin = drone.start + quarter * 10 * timedelta(minutes=1)
            cores = (Component("Cores", drone.cores // 4, ()),)
            meta: dict[str, tuple[str, ...]] = {"site_id": ("cluster",), "node": (drone.name,)}
            yield Record(f"slurm-{drone.name}-{quarter}", begin, cores, max(begin, end - HOUR), meta)


def report_drones(daemon: TestDaemon, all_drones: Sequence[Drone]) -> None:
    client = Client(daemon.url)
    for drone in all_drones:
        client.add(drone.available())
        if drone.stop is not None:
            client.update(drone.name, drone.stop)


@pytest.fixture(scope="module")
def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drones")


@pytest.fixture(scope="module")
def servers(folder: Path, now: datetime) -> Iterator[tuple[TestDaemon, TestDaemon]]:
    """One with drones, one with jobs."""
    all_drones = list(drones(now))
    with ExitStack() as stack:
        for name in ("tardis", "slurm"):
            (folder / name).mkdir()
        tardis = stack.enter_context(running_daemon(folder / "tardis", {}))
        slurm = stack.enter_context(running_daemon(folder / "slurm", {}))
        report_drones(tardis, all_drones)
        Client(slurm.url).add_all(slurm_jobs(all_drones, now))
        yield tardis, slurm


def table(daemon: TestDaemon) -> Any:  # Any: a table of pandas, whose own types are partly unknown
    with Client(daemon.url).stream() as records:
        return to_pandas(records, explode=("site_id", "node"))


def test_drones_and_jobs_of_two_servers_are_put_together(servers: tuple[TestDaemon, TestDaemon], now: datetime) -> None:
    """Of the cores that each provider provided, how many did Slurm's jobs hold?"""
    provided, used = map(table, servers)
    together = used.merge(provided, left_on="meta.node", right_on="record_id", suffixes=("_job", "_drone"))
    assert len(together) == len(used) == 3 * sum(DRONES_EACH.values())
    together["held"] = together["amount.Cores_job"] * together["runtime_job"]
    held = together.groupby("meta.site_id_drone")["held"].sum().to_dict()
    truth: Counter[str] = Counter()
    for job in slurm_jobs(list(drones(now)), now):
        assert job.runtime is not None
        assert job.meta is not None
        truth[job.meta["node"][0].partition("-")[0]] += job.components[0].amount * job.runtime
    assert held == truth
    assert {site: int(count) for site, count in provided["meta.site_id"].value_counts().items()} == DRONES_EACH


def test_sums_of_both_need_no_records(servers: tuple[TestDaemon, TestDaemon], now: datetime) -> None:
    query = AggregateQuery(by=(MetaValue("site_id", "site"),), usage=(ComponentUsage("Cores"),), as_of=now)
    tardis, slurm = [Client(daemon.url).aggregate(query) for daemon in servers]
    provided = {str(group.key[0]): group.usage[0].sums.amount_runtime for group in tardis.groups}
    assert provided == integrals(now, None)
    assert [group.records for group in slurm.groups] == [3 * sum(DRONES_EACH.values())]


def integrals(now: datetime, window: timedelta | None) -> dict[str, int]:
    """Core seconds by provider, added up one drone after the other."""
    found: Counter[str] = Counter()
    for drone in drones(now):
        begin = drone.start if window is None else max(drone.start, now - window)
        span = (drone.stop or now) - begin
        found[drone.provider] += drone.cores * max(0, span // timedelta(seconds=1))
    return dict(found)


def priorities(now: datetime) -> dict[str, int]:
    """FullSpread between 1 and 65,335."""
    sums = integrals(now, WINDOW)
    least, most = min(sums.values()), max(sums.values())
    return {name: round((each - least) / (most - least) * 65_334 + 1) for name, each in sums.items()}


def test_what_was_provided_in_14_days_becomes_priorities_of_partitions(
    servers: tuple[TestDaemon, TestDaemon], folder: Path, now: datetime
) -> None:
    tardis, _ = servers
    noted = folder / "priorities"
    program = "import sys; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]) + chr(10))"
    command = shlex.join([sys.executable, "-c", program, str(noted), "{1}", "{priority}"])
    plugin: dict[str, Any] = {
        "kind": "priority",
        "run_at_start": True,
        "source": {"url": tardis.url},
        "components": {"Cores": None},
        "group_mapping": {name: [partition] for name, partition in PROVIDERS.items()},
        "commands": [command],
        "computation_mode": "FullSpread",
        "min_priority": 1,
        "max_priority": 65_335,
        "duration": "14d",
        "window": "overlap",
    }
    (folder / "plugin").mkdir()
    with running_daemon(folder / "plugin", {"plugins": {"priority": plugin}}) as daemon:
        report = daemon.finish_run("priority")
    assert report.error is None
    assigned = dict(line.split() for line in noted.read_text().splitlines())
    for provider, wanted in priorities(now).items():  # drones run on, and the window moves, while this test does
        assert abs(int(assigned[PROVIDERS[provider]]) - wanted) <= 200
    assert min(assigned.values(), key=int) == "1"
    assert max(assigned.values(), key=int) == "65335"
