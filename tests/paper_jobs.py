"""Jobs in the shape of the AUDITOR paper: a compute element before three providers, or five submit hosts.

Made by arithmetic from a number, so that every figure can be added up without the code under test.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Final

from auditord_builtin.htcondor.ads import JobAd
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import convert_ad
from auditord_hookspecs import Record
from auditord_hookspecs.outcomes import Converted

PER_MONTH: Final = 1_700_000
SITES: Final = ("PROVIDER-A", "PROVIDER-B", "PROVIDER-C")
SCORES: Final = ("9.2", "15.5", "18.1")
VOS: Final = ("atlas", "belle", "cms", "lhcb")

# A is known by the names of its nodes, B by their addresses, C is all that is left.
SITE_RULES: Final = [
    {"name": SITES[0], "only_if": {"key": "LastRemoteHost", "matches": r"@wn\d+\.a\.example\.org$"}},
    {"name": SITES[1], "only_if": {"key": "StartdPrincipal", "matches": r"/10\.2\.\d+\.\d+$"}},
    {"name": SITES[2]},
]
COLLECTOR: Final = HTCondorConfig.model_validate({"record_prefix": "ce", "sites": SITE_RULES})


@dataclass(frozen=True, slots=True)
class Job:
    """One job as its generator knows it.

    Args:
        number: of the job.
        host: which submit host took it.
        stop: when it ended.
    """

    number: int
    host: str
    stop: datetime

    @property
    def site(self) -> str:
        """The provider that ran it."""
        return SITES[(self.number * 7 // 5) % 3]

    @property
    def cores(self) -> int:
        """The resources of the job."""
        return (1, 8, 1, 4)[self.number % 4]

    @property
    def seconds(self) -> int:
        """The length of the job."""
        return 600 + self.number * 15_485_863 % 80_000

    @property
    def score(self) -> str:
        """HEPscore23 of a core."""
        return SCORES[self.number * 11 % 3]

    @property
    def cpu(self) -> int:
        """Seconds of all cores."""
        return self.seconds * self.cores * 9 // 10

    @property
    def benchmark_hours(self) -> Fraction:
        """HEPscore23 hours."""
        return Fraction(self.score) * self.cores * self.seconds / 3_600

    def row(self) -> dict[str, str]:
        """The output of ``condor_history`` about it."""
        node, third, fourth = self.number % 97, self.number // 256 % 256, self.number % 256
        by_name, network = self.site == SITES[0], {SITES[1]: 2}.get(self.site, 3)
        stop = int(self.stop.timestamp())
        return {
            "GlobalJobId": f"{self.host}#{self.number}.0#{stop - self.seconds - 60}",
            "Owner": f"pilot{self.number % 13:02}",
            "VoName": VOS[self.number % 4],
            "JobStatus": "4",
            "JobUniverse": "5",
            "NumJobStarts": "1",
            "LastMatchTime": str(stop - self.seconds),
            "CompletionDate": str(stop),
            "LastRemoteHost": f"slot1_{node}@wn{node}.{'a' if by_name else 'cloud'}.example.org",
            "StartdPrincipal": f"condor@family/10.{network}.{third}.{fourth}",
            "CpusProvisioned": str(self.cores),
            "MemoryProvisioned": str(2_000 * self.cores),
            "RemoteUserCpu+RemoteSysCpu": str(self.cpu),
            "MachineAttrApelSpecs0.HEPSPEC": self.score,
            "MachineAttrApelSpecs0.HEPscore23": self.score,
        }

    def record(self) -> Record:
        """The collector's record of it."""
        converted = convert_ad(COLLECTOR, JobAd(self.row()))
        assert isinstance(converted, Converted), converted
        return converted.record


def jobs(numbers: Iterable[int], begin: datetime, spacing: timedelta, hosts: int = 1) -> Iterator[Job]:
    """Jobs that end one after the other; submit hosts are unevenly busy."""
    for number in numbers:
        host = min(number * 104_729 % 11, hosts - 1) if hosts > 1 else 0
        yield Job(number, f"ce-{host + 1}.example.org", begin + number * spacing)


def month(year: int, number: int) -> datetime:
    """Its first instant."""
    return datetime(year, number, 1, tzinfo=UTC)


def table_1(all_jobs: Iterable[Job]) -> dict[tuple[str, str, int], Fraction]:
    """HEPscore23 hours by site, submit host and year."""
    hours: dict[tuple[str, str, int], Fraction] = {}
    for job in all_jobs:
        key = (job.site, job.host, job.stop.year)
        hours[key] = hours.get(key, Fraction(0)) + job.benchmark_hours
    return hours


def table_2(all_jobs: Iterable[Job]) -> Counter[tuple[str, str]]:
    """Jobs by submit host and month."""
    return Counter((job.host, f"{job.stop:%Y-%m}") for job in all_jobs)
