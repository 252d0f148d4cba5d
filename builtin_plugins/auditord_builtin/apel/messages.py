"""Messages for APEL: rows, their text, and batches small enough for the broker."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import groupby
from typing import Final
from unicodedata import category

import msgspec
from msgspec.structs import replace

from auditord_builtin.apel.config import JobLayout, SummaryLayout
from auditord_hookspecs.months import Month
from auditord_hookspecs.wording import counted

LONGEST: Final = 255
"""The length of most columns in APEL's database, in characters."""

_REMEMBERED: Final = 10_000  # most rows repeat the same few texts
_CONTROLS: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_WIDEST: Final = 0xFFFF
# The receiver mistakes a message with these words for an encrypted one, and fails.
_ENCRYPTED: Final = re.compile(r"(application/(?:x-)?pkcs7)-(mime)", re.IGNORECASE)


@lru_cache(_REMEMBERED)
def clean(text: str, longest: int = LONGEST) -> str:
    """Return a text as a value for a message: one line of at most ``longest`` characters, without ``%%``.

    White space and control characters become single spaces, and characters beyond the basic plane become question
    marks. An empty result becomes ``None``.
    """
    printable = "".join(
        [" " if category(each) in _CONTROLS else each if ord(each) <= _WIDEST else "?" for each in text]
    )
    line = " ".join(printable.split())
    harmless = _ENCRYPTED.sub(r"\1 \2", re.sub("%(?=%)", "% ", line))
    return harmless[:longest].rstrip() or "None"


def clean_name(text: str, longest: int = LONGEST) -> str:
    """Clean a field other than VO, VOGroup and VORole. In these, APEL reads ``null`` and ``none`` as missing."""
    name = clean(text, longest)
    return "None" if name.lower() in {"null", "none"} else name


@lru_cache(_REMEMBERED)
def fold(text: str) -> str:
    """Return a text as a database compares it: without case, accents and surrounding spaces."""
    if text.isascii():
        return text.lower().strip()
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join([each for each in plain if not unicodedata.combining(each)]).casefold().strip()


class Problem(msgspec.Struct, frozen=True):
    """A problem with a record, row or line, and the number of jobs that are left out because of it."""

    subject: str
    reason: str
    jobs: int = 0

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}" + (f" ({counted(self.jobs, 'job')})" if self.jobs else "")


class SummaryRow(msgspec.Struct, frozen=True, gc=False):
    """One record of a summary: clean texts and rounded sums. Fields that are None are not reported.

    Its JSON is part of the digests of sent reports, so with a new field every month would be reported again.

    Args:
        site: its name in GOCDB.
        month: the month in which the jobs ended.
        vo: the virtual organisation. Like ``submit_host``, it is the text ``None`` if unknown.
        node_count: the number per job, like ``processors``.
        benchmark: its name in APEL.
        service_level: the benchmark's value, or None if durations are already normalised.
        wall: the sum of runtimes in seconds, like ``cpu``. It is not multiplied by processors.
        normalised_wall: seconds times benchmark, like ``normalised_cpu``; 0 if APEL normalises.
        earliest: the first end time in seconds since 1970, like ``latest``; None in a row that withdraws another.
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
        """APEL's key of the row. A later row with the same key, ignoring case and accents, replaces it."""
        texts = (self.site, self.global_user_name, self.vo, self.vo_role, self.vo_group, self.submit_host)
        numbers = (self.month, self.node_count, self.processors, self.service_level)
        folded = [fold(text or "None") for text in (*texts, self.infrastructure, self.benchmark)]
        return (*folded, *map(str, numbers))

    def withdrawn(self) -> "SummaryRow":
        """Return the row without usage. It is sent if its key no longer has jobs: APEL would keep the old amounts."""
        none = {"jobs": 0, "wall": 0, "cpu": 0, "normalised_wall": 0, "normalised_cpu": 0}
        return msgspec.structs.replace(self, **none, earliest=None, latest=None)


class JobRow(msgspec.Struct, frozen=True):
    """One job to publish. ``fields`` are its lines, and ``month`` is the month in which it ended.

    Args:
        remark: a note on a job whose stored values were changed for the report.
    """

    layout: JobLayout
    record_id: str
    site: str
    month: Month
    fields: Mapping[str, str]
    remark: Problem | None = None


class LeftOutJobs(msgspec.Struct, frozen=True):
    """The number of jobs of a site, month and submit host that cannot be reported, and the reason."""

    site: str
    month: Month
    submit_host: str
    jobs: int
    reason: str


class Summaries(msgspec.Struct, frozen=True):
    """The rows of one site and month, sorted by key, and the jobs that they leave out.

    ``held`` rows are not sent, since APEL would refuse them. APEL keeps its earlier versions of these rows.
    """

    rows: tuple[SummaryRow, ...] = ()
    problems: tuple[Problem, ...] = ()
    held: tuple[SummaryRow, ...] = ()
    left_out: tuple[LeftOutJobs, ...] = ()

    @property
    def unreported(self) -> tuple[SummaryRow | LeftOutJobs, ...]:
        """The stored jobs that are not in ``rows``."""
        return (*self.held, *self.left_out)

    @property
    def counts(self) -> tuple[SummaryRow | LeftOutJobs, ...]:
        """All stored jobs, for the sync message, which tells APEL how many jobs are missing."""
        return (*self.rows, *self.unreported)


HEADERS: Final[Mapping[SummaryLayout | JobLayout, str]] = {
    SummaryLayout.NORMALISED_4: "APEL-normalised-summary-message: v0.4",
    SummaryLayout.NORMALISED_3: "APEL-summary-job-message: v0.3",
    SummaryLayout.PLAIN_4: "APEL-summary-job-message: v0.4",
    SummaryLayout.PLAIN_2: "APEL-summary-job-message: v0.2",
    JobLayout.V4: "APEL-individual-job-message: v0.4",
    JobLayout.V3: "APEL-individual-job-message: v0.3",
}
"""First lines of messages."""

SYNC_HEADER: Final = "APEL-sync-message: v0.1"

JOB_FIELDS: Final = (
    *("Site", "SubmitHost", "MachineName", "Queue", "LocalJobId", "LocalUserId", "GlobalUserName", "FQAN"),
    *("VO", "VOGroup", "VORole", "WallDuration", "CpuDuration", "Processors", "NodeCount", "StartTime", "EndTime"),
    *("InfrastructureDescription", "InfrastructureType", "MemoryReal", "MemoryVirtual"),
    *("ServiceLevelType", "ServiceLevel"),
)
"""Fields of an individual job, in the order of its lines."""

END: Final = "%%\n"
"""The line that closes a record."""

MOST_BYTES: Final = 900_000
"""The size limit of an encoded message. The broker accepts 1 MB, and answers 413 to larger messages."""

_FRAME: Final = 16_000
"""Bytes of signature, certificates, boundaries and JSON."""


class Message(msgspec.Struct, frozen=True):
    """The text of a message before signing: records of one site and month, with ``record_ids`` for jobs."""

    text: str
    records: int
    site: str
    month: Month
    record_ids: tuple[str, ...] = ()

    def halves(self) -> tuple["Message", "Message"]:
        """Split the message in two, after the broker refused it as too large.

        Raises:
            ValueError: there is only one record.
        """
        if self.records < 2:  # noqa: PLR2004 two halves
            raise ValueError("a message with one record cannot be halved")
        middle = self.records // 2
        ids = self.record_ids
        if self.text.startswith("{"):
            document = json.loads(self.text)
            usage = document["UsageRecords"]
            parts = (usage[:middle], usage[middle:])
            first, second = (f"{json.dumps({**document, 'UsageRecords': part})}\n" for part in parts)
        else:
            header, _, body = self.text.partition("\n")
            blocks = body.split(END)[:-1]
            first, second = (f"{header}\n{END.join(part)}{END}" for part in (blocks[:middle], blocks[middle:]))
        return (
            replace(self, text=first, records=middle, record_ids=ids[:middle]),
            replace(self, text=second, records=self.records - middle, record_ids=ids[middle:]),
        )


class Block(msgspec.Struct, frozen=True):
    """A record of a message, with the message's first line, site and month, and with the record id of a job."""

    header: str
    site: str
    month: Month
    text: str
    record_id: str | None = None


def render(rows: Iterable[SummaryRow], most_bytes: int = MOST_BYTES) -> Sequence[Message]:
    """Return messages with these rows, each small enough for the broker."""
    blocks: list[Block] = []
    for row in sorted(rows, key=lambda row: (row.layout.value, row.site, row.month, row.key)):
        level: list[tuple[str, object]] = []
        durations: list[tuple[str, object]] = []
        wall, cpu = row.normalised_wall, row.normalised_cpu
        match row.layout:
            case SummaryLayout.NORMALISED_4:
                durations = [
                    ("NormalisedWallDuration", f"{{{row.benchmark}: {wall}}}"),
                    ("NormalisedCpuDuration", f"{{{row.benchmark}: {cpu}}}"),
                ]
            case SummaryLayout.NORMALISED_3:
                level = [("ServiceLevelType", row.benchmark)]
                durations = [("NormalisedWallDuration", wall), ("NormalisedCpuDuration", cpu)]
            case SummaryLayout.PLAIN_4:
                level = [("ServiceLevel", f"{{{row.benchmark}: {row.service_level:f}}}")]
            case SummaryLayout.PLAIN_2:
                level = [("ServiceLevelType", row.benchmark), ("ServiceLevel", f"{row.service_level:f}")]
        lines: list[tuple[str, object]] = [
            ("Site", row.site),
            ("Month", row.month.month),
            ("Year", row.month.year),
            ("GlobalUserName", row.global_user_name),
            ("VO", row.vo),
            ("VOGroup", row.vo_group),
            ("VORole", row.vo_role),
            ("SubmitHost", row.submit_host),
            ("Infrastructure" if row.layout.normalised else "InfrastructureType", row.infrastructure),
            ("InfrastructureDescription", row.infrastructure_description),
            *level,
            ("NodeCount", row.node_count),
            ("Processors", row.processors),
            ("EarliestEndTime", row.earliest),
            ("LatestEndTime", row.latest),
            ("WallDuration", row.wall),
            ("CpuDuration", row.cpu),
            *durations,
            ("NumberOfJobs", row.jobs),
        ]
        blocks.append(Block(HEADERS[row.layout], row.site, row.month, _text(lines)))
    return pack(blocks, most_bytes)


def sync_message(rows: Iterable[SummaryRow | LeftOutJobs], most_bytes: int = MOST_BYTES) -> Sequence[Message]:
    """Return messages with the number of jobs by site, month and submit host, which APEL compares with its own."""
    jobs: Counter[tuple[str, str, Month]] = Counter()
    hosts: dict[tuple[str, str, Month], str] = {}
    for row in sorted(rows, key=lambda row: (row.site, row.month, row.submit_host)):
        key = (row.site, fold(row.submit_host), row.month)
        jobs[key] += row.jobs
        hosts.setdefault(key, row.submit_host)
    blocks: list[Block] = []
    for (site, host, month), number in jobs.items():
        lines = (("Site", site), ("SubmitHost", hosts[site, host, month]), ("NumberOfJobs", number))
        text = _text((*lines, ("Month", month.month), ("Year", month.year)))
        blocks.append(Block(SYNC_HEADER, site, month, text))
    return pack(blocks, most_bytes)


def render_jobs(rows: Iterable[JobRow], most_bytes: int = MOST_BYTES) -> Sequence[Message]:
    """Return messages with these jobs, each of one site and month and small enough for the broker."""
    ordered = sorted(rows, key=lambda row: (row.layout.value, row.site, row.month))
    blocks: list[Block] = []
    for row in ordered:
        text = _text([(key, row.fields[key]) for key in JOB_FIELDS if key in row.fields])
        blocks.append(Block(HEADERS[row.layout], row.site, row.month, text, row.record_id))
    return pack(blocks, most_bytes)


def pack(blocks: Iterable[Block], most_bytes: int = MOST_BYTES) -> Sequence[Message]:
    """Pack records into messages, in order. Each message has one header, site and month."""
    messages: list[Message] = []
    for (header, site, month), alike in groupby(blocks, lambda block: (block.header, block.site, block.month)):
        batches: list[list[Block]] = [[]]
        size = _FRAME
        for block in alike:
            more = measure_encoded(block.text)
            if batches[-1] and size + more > most_bytes:
                batches.append([])
                size = _FRAME
            batches[-1].append(block)
            size += more
        for batch in batches:
            text = f"{header}\n" + "".join([block.text for block in batch])
            ids = tuple([block.record_id for block in batch if block.record_id is not None])
            messages.append(Message(text, len(batch), site, month, ids))
    return messages


def measure_encoded(text: str) -> int:
    """Return an upper limit of the size after quoted-printable with CRLF and base64 encoding, without the frame."""
    plain = len(text.encode("ascii", "ignore"))
    wide = plain + 2 * text.count("=") + 3 * (len(text.encode()) - plain)
    signed = (wide + text.count("\n")) * 80 // 76 + 1
    return (signed + 2) // 3 * 4


def _text(lines: Iterable[tuple[str, object]]) -> str:
    """Return a record's text, without the keys that have no value."""
    return "".join([f"{key}: {value}\n" for key, value in lines if value is not None]) + END
