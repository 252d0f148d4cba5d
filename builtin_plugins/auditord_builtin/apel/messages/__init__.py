"""APEL's messages as text, and the values that they are made of.

Formats: https://docs.egi.eu/internal/accounting/data-formats (individual job, summary, normalised summary, sync).
"""

from auditord_builtin.apel.messages.jobs import render_jobs
from auditord_builtin.apel.messages.packing import MOST_BYTES
from auditord_builtin.apel.messages.rows import JobRow, Message, Problem, Summaries, SummaryRow
from auditord_builtin.apel.messages.summaries import render, sync_message

__all__ = [
    "MOST_BYTES",
    "JobRow",
    "Message",
    "Problem",
    "Summaries",
    "SummaryRow",
    "render",
    "render_jobs",
    "sync_message",
]
