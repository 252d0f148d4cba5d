"""APEL's messages as text, and the values that they are made of.

Formats: https://docs.egi.eu/internal/accounting/data-formats (individual job, summary, normalised summary, sync).
"""

from auditord_builtin.apel.messages.rows import JobRow, Message, Problem, Summaries, SummaryRow

__all__ = ["JobRow", "Message", "Problem", "Summaries", "SummaryRow"]
