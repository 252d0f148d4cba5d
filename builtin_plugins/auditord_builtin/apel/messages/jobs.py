"""Individual jobs as text (v0.4, v0.3)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from auditord_builtin.apel.config import JobLayout
from auditord_builtin.apel.messages.packing import MOST_BYTES, Block, pack
from auditord_builtin.apel.messages.rows import JobRow, Message

HEADERS: Final[Mapping[JobLayout, str]] = {
    JobLayout.V4: "APEL-individual-job-message: v0.4",
    JobLayout.V3: "APEL-individual-job-message: v0.3",
}
ORDER: Final = (
    *("Site", "SubmitHost", "MachineName", "Queue", "LocalJobId", "LocalUserId", "GlobalUserName", "FQAN"),
    *("VO", "VOGroup", "VORole", "WallDuration", "CpuDuration", "Processors", "NodeCount", "StartTime", "EndTime"),
    *("InfrastructureDescription", "InfrastructureType", "MemoryReal", "MemoryVirtual"),
    *("ServiceLevelType", "ServiceLevel"),
)


def render_jobs(rows: Iterable[JobRow], most_bytes: int = MOST_BYTES) -> Sequence[Message]:
    """The messages with these jobs, each with the jobs of one site and month, none larger than the broker takes."""
    ordered = sorted(rows, key=lambda row: (row.layout.value, row.site, row.month))
    return pack([_block(row) for row in ordered], most_bytes)


def _block(row: JobRow) -> Block:
    lines = [(key, row.fields[key]) for key in ORDER if key in row.fields]
    return Block(HEADERS[row.layout], row.site, row.month, lines, row.record_id)
