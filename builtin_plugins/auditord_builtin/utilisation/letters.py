"""A report as a mail."""

import hashlib
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from auditord_builtin.utilisation.config import Mail
from auditord_builtin.utilisation.page import as_html
from auditord_builtin.utilisation.report import Report
from auditord_builtin.utilisation.tables import as_csv, as_text, heading


def letter(report: Report, mail: Mail, instance: str, recipient: str, now: datetime) -> EmailMessage:
    """The mail with a report for one recipient.

    Its Message-ID is the same each time, so that a mail which is sent again, since nobody knows whether it was taken,
    can be recognised.
    """
    message = EmailMessage(policy=SMTP)
    message["From"], message["To"] = mail.sender, recipient
    message["Subject"] = heading(report)
    message["Date"] = format_datetime(now)
    message["Message-ID"] = message_id(report, mail.sender, instance, recipient)
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(as_text(report, mail.most_rows))
    message.add_alternative(as_html(report, mail.most_rows), subtype="html")
    if mail.attach_csv:
        message.add_attachment(as_csv(report), subtype="csv", filename=f"{instance}-{report.period.name}.csv")
    return message


def message_id(report: Report, sender: str, instance: str, recipient: str) -> str:
    """What names a mail: one for each report, period, sender and recipient."""
    named = (report.title, instance, report.period.name, sender, recipient)
    digest = hashlib.sha256("\0".join(named).encode()).hexdigest()[:32]
    return f"<{report.period.name}.{digest}@{sender.rpartition('@')[2]}>"
