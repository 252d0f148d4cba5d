"""Summaries as text: normalised (v0.4, v0.3) or to be normalised by APEL (v0.4, v0.2), and the sync message beside."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from auditord_builtin.apel.config import SummaryLayout
from auditord_builtin.apel.messages.packing import MOST_BYTES, Block, pack
from auditord_builtin.apel.messages.rows import Message, SummaryRow
from auditord_builtin.apel.messages.text import fold

HEADERS: Final[Mapping[SummaryLayout, str]] = {
    SummaryLayout.NORMALISED_4: "APEL-normalised-summary-message: v0.4",
    SummaryLayout.NORMALISED_3: "APEL-summary-job-message: v0.3",
    SummaryLayout.PLAIN_4: "APEL-summary-job-message: v0.4",
    SummaryLayout.PLAIN_2: "APEL-summary-job-message: v0.2",
}
SYNC_HEADER: Final = "APEL-sync-message: v0.1"


def render(rows: Iterable[SummaryRow], most_bytes: int = MOST_BYTES) -> Sequence[Message]:
    """The messages with these rows, none of them larger than the broker takes."""
    ordered = sorted(rows, key=lambda row: (row.layout.value, row.site, row.month, row.key))
    return pack([_block(row) for row in ordered], most_bytes)


def sync_message(rows: Iterable[SummaryRow], most_bytes: int = MOST_BYTES) -> Sequence[Message]:
    """How many jobs the rows have for each site, month and submit host, for APEL to compare with what it holds."""
    jobs: Counter[tuple[str, str, object]] = Counter()
    first: dict[tuple[str, str, object], SummaryRow] = {}
    for row in sorted(rows, key=lambda row: (row.site, row.month, row.submit_host)):
        key = (row.site, fold(row.submit_host), row.month)
        jobs[key] += row.jobs
        first.setdefault(key, row)
    return pack([_sync_block(first[key], number) for key, number in jobs.items()], most_bytes)


def _sync_block(row: SummaryRow, jobs: int) -> Block:
    lines = [
        ("Site", row.site),
        ("SubmitHost", row.submit_host),
        ("NumberOfJobs", str(jobs)),
        ("Month", str(row.month.month)),
        ("Year", str(row.month.year)),
    ]
    return Block(SYNC_HEADER, row.site, row.month, lines)


def _block(row: SummaryRow) -> Block:
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
        *_service_level(row),
        ("NodeCount", row.node_count),
        ("Processors", row.processors),
        ("EarliestEndTime", row.earliest),
        ("LatestEndTime", row.latest),
        ("WallDuration", row.wall),
        ("CpuDuration", row.cpu),
        *_normalised(row),
        ("NumberOfJobs", row.jobs),
    ]
    present = [(key, str(value)) for key, value in lines if value is not None]
    return Block(HEADERS[row.layout], row.site, row.month, present)


def _service_level(row: SummaryRow) -> list[tuple[str, object]]:
    match row.layout:
        case SummaryLayout.NORMALISED_3:
            return [("ServiceLevelType", row.benchmark)]
        case SummaryLayout.PLAIN_4:
            return [("ServiceLevel", f"{{{row.benchmark}: {row.service_level:f}}}")]
        case SummaryLayout.PLAIN_2:
            return [("ServiceLevelType", row.benchmark), ("ServiceLevel", f"{row.service_level:f}")]
        case SummaryLayout.NORMALISED_4:
            return []


def _normalised(row: SummaryRow) -> list[tuple[str, object]]:
    if not row.layout.normalised:
        return []
    wall, cpu = row.normalised_wall, row.normalised_cpu
    if row.layout is SummaryLayout.NORMALISED_4:
        return [
            ("NormalisedWallDuration", f"{{{row.benchmark}: {wall}}}"),
            ("NormalisedCpuDuration", f"{{{row.benchmark}: {cpu}}}"),
        ]
    return [("NormalisedWallDuration", wall), ("NormalisedCpuDuration", cpu)]
