"""The contents of messages: one row for each record in them, amounts as whole numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

import msgspec

from auditord_builtin.apel.config import JobLayout, SummaryLayout
from auditord_builtin.apel.text import fold
from auditord_hookspecs.months import Month
from auditord_hookspecs.wording import counted


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault in a record, row or line for an operator, and the number of jobs that it leaves out."""

    subject: str
    reason: str
    jobs: int = 0

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}" + (f" ({counted(self.jobs, 'job')})" if self.jobs else "")


class SummaryRow(msgspec.Struct, frozen=True, gc=False):
    """One record of a summary: texts are clean, sums rounded. What is None is not reported.

    Its JSON is part of the digests of what APEL was sent: another field would have every month reported again.

    Args:
        site: its name in GOCDB.
        month: in which the jobs ended.
        vo: virtual organisation; the text ``None`` if there is none; so for ``submit_host``.
        node_count: of each job, as ``processors``.
        benchmark: its name in APEL.
        service_level: the value of the benchmark; None where durations are normalised already.
        wall: the sum of runtimes in seconds, not times processors; as ``cpu``.
        normalised_wall: seconds times benchmark; 0 where APEL normalises; as ``normalised_cpu``.
        earliest: the first end time in seconds since 1970, as ``latest``; None in a row that withdraws another.
        infrastructure: ``grid`` or ``local``.
        infrastructure_description: not part of the key.
    """

    layout: SummaryLayout
    site: str
    month: Month
    vo: str
    submit_host: str
    node_count: int
    processors: int
    benchmark: str
    service_level: Decimal | None
    jobs: int
    wall: int
    cpu: int
    normalised_wall: int = 0
    normalised_cpu: int = 0
    earliest: int | None = None
    latest: int | None = None
    global_user_name: str | None = None
    vo_group: str | None = None
    vo_role: str | None = None
    infrastructure: str | None = None
    infrastructure_description: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """APEL's key of the row: a later one with this key replaces it, whatever its case and accents."""
        texts = (self.site, self.global_user_name, self.vo, self.vo_role, self.vo_group, self.submit_host)
        numbers = (self.month, self.node_count, self.processors, self.service_level)
        folded = [fold(text or "None") for text in (*texts, self.infrastructure, self.benchmark)]
        return (*folded, *map(str, numbers))

    def withdrawn(self) -> "SummaryRow":
        """The key without usage: to be sent once the key is gone, or APEL would keep the old amounts."""
        none = {"jobs": 0, "wall": 0, "cpu": 0, "normalised_wall": 0, "normalised_cpu": 0}
        return msgspec.structs.replace(self, **none, earliest=None, latest=None)


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as it is published: ``fields`` are its lines, ``month`` is that in which it ended.

    Args:
        remark: about a job that is not reported as it is stored.
    """

    layout: JobLayout
    record_id: str
    site: str
    month: Month
    fields: Mapping[str, str]
    remark: Problem | None = None


@dataclass(frozen=True, slots=True)
class LeftOutJobs:
    """Jobs that cannot be reported: how many there are of a site, month and submit host, and why."""

    site: str
    month: Month
    submit_host: str
    jobs: int
    reason: str


@dataclass(frozen=True, slots=True)
class Summaries:
    """The rows of one site and month in the order of their keys, and what was left out.

    APEL would refuse ``held`` rows and keeps what it has of them: their jobs are not gone.
    """

    rows: tuple[SummaryRow, ...] = ()
    problems: tuple[Problem, ...] = ()
    held: tuple[SummaryRow, ...] = ()
    left_out: tuple[LeftOutJobs, ...] = ()

    @property
    def unreported(self) -> tuple[SummaryRow | LeftOutJobs, ...]:
        """The jobs that the store has and the rows do not."""
        return (*self.held, *self.left_out)

    @property
    def counts(self) -> tuple[SummaryRow | LeftOutJobs, ...]:
        """All jobs of the store, for the sync message: what is missing in the rows shows there."""
        return (*self.rows, *self.unreported)
