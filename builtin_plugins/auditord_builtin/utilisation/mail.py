"""A report as a mail, and the mail server that takes it, by SMTP: passing faults are distinguished from refusals."""

import hashlib
import smtplib
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Final

import anyio
import anyio.to_thread
import stamina

from auditord_builtin.utilisation.config import Mail, Server
from auditord_builtin.utilisation.page import as_html
from auditord_builtin.utilisation.report import Report
from auditord_builtin.utilisation.tables import as_csv, as_text, heading
from auditord_hookspecs import AuditordError

_PERMANENT: Final = 500


class MailFault(AuditordError):
    """The mail server cannot be used now: no recipient would get anything.

    Remedy:
        see the server in the plugin's option `mail`; `auditord doctor` logs in there without a mail. The mails are sent
        by the next run.
    """


class RecipientBusy(AuditordError):
    """The server does not take mail for this recipient now.

    Remedy:
        none: it is tried again.
    """


class RecipientRefused(AuditordError):
    """The server does not take this mail for this recipient.

    Remedy:
        mend the address in the configuration.
    """


class _Passing(MailFault):
    """A fault that may be gone in a moment."""


def message_of(report: Report, mail: Mail, instance: str, recipient: str, now: datetime) -> EmailMessage:
    """The mail with a report for one recipient.

    Its Message-ID is the same each time, so that a mail which is sent again, since it is not known whether it was
    taken, can be recognised.
    """
    named = (report.title, instance, report.period.name, mail.sender, recipient)
    digest = hashlib.sha256("\0".join(named).encode()).hexdigest()[:32]
    message = EmailMessage(policy=SMTP)
    message["From"], message["To"] = mail.sender, recipient
    message["Subject"] = heading(report)
    message["Date"] = format_datetime(now)
    message["Message-ID"] = f"<{report.period.name}.{digest}@{mail.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(as_text(report, mail.most_rows))
    message.add_alternative(as_html(report, mail.most_rows), subtype="html")
    if mail.attach_csv:
        message.add_attachment(as_csv(report), subtype="csv", filename=f"{instance}-{report.period.name}.csv")
    return message


class MailServer:
    """A mail server, over one connection as long as it holds. For one task at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: smtplib.SMTP | None = None

    async def send(self, message: EmailMessage) -> None:
        """Hand a mail over to the server; passing faults are tried again, with doubled pauses.

        Raises:
            RecipientRefused: it is refused for good.
            RecipientBusy: it is refused for now, also when tried again.
            MailFault: the server is away, refuses the login, or cannot be trusted.
        """
        wait = self._server.retry_wait
        async for attempt in stamina.retry_context(
            on=(_Passing, RecipientBusy),
            attempts=self._server.retries + 1,
            timeout=None,
            wait_initial=wait,
            wait_max=wait * 2**self._server.retries,
            wait_jitter=0,
        ):
            with attempt:
                await anyio.to_thread.run_sync(self._send, message)

    def close(self) -> None:
        """End the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(smtplib.SMTPException, OSError):  # what was delivered stays delivered
                connection.quit()
            connection.close()

    def _send(self, message: EmailMessage) -> None:
        where = f"mail server {self._server.host}:{self._server.port_number}"
        try:
            self._open().send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            ((code, text),) = error.recipients.values()
            raise _refusal(f"{message['To']}: {where} says {code} {_text(text)}", code) from error
        except smtplib.SMTPDataError as error:
            said = f"{error.smtp_code} {_text(error.smtp_error)}"
            raise _refusal(f"{message['To']}: {where} says {said}", error.smtp_code) from error
        except (smtplib.SMTPException, OSError) as error:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            raise _fault(where, error) from error

    def _open(self) -> smtplib.SMTP:
        if self._connection is None:
            self._connection = _connect(self._server)
        return self._connection


@asynccontextmanager
async def mail_server(server: Server) -> AsyncGenerator[MailServer, None]:
    """A mail server; the connection is opened for the first mail."""
    opened = MailServer(server)
    try:
        yield opened
    finally:
        with anyio.CancelScope(shield=True):  # the timeout of the server bounds it
            await anyio.to_thread.run_sync(opened.close)


async def greet(server: Server) -> None:
    """Connect to the server, and log in where that is configured.

    Raises:
        MailFault: it is away, refuses the login, or cannot be trusted.
    """

    def connect() -> None:
        try:
            with _connect(server):
                return
        except (smtplib.SMTPException, OSError) as error:
            raise _fault(f"mail server {server.host}:{server.port_number}", error) from error

    await anyio.to_thread.run_sync(connect)


def _connect(server: Server) -> smtplib.SMTP:
    timeout = server.timeout.total_seconds()
    trust = ssl.create_default_context(cafile=None if server.ca is None else str(server.ca))
    if server.security == "ssl":
        connection: smtplib.SMTP = smtplib.SMTP_SSL(server.host, server.port_number, timeout=timeout, context=trust)
    else:
        connection = smtplib.SMTP(server.host, server.port_number, timeout=timeout)
    try:
        if server.security == "starttls":
            connection.starttls(context=trust)
        if server.user is not None and server.password is not None:
            connection.login(server.user, server.password.get_secret_value())
    except BaseException:
        connection.close()
        raise
    return connection


def _refusal(text: str, code: int) -> AuditordError:
    return RecipientRefused(text) if code >= _PERMANENT else RecipientBusy(text)


def _fault(where: str, error: smtplib.SMTPException | OSError) -> MailFault:
    match error:
        case smtplib.SMTPNotSupportedError():
            return MailFault(f"{where} cannot do what is asked of it: {error}")
        case smtplib.SMTPResponseException():
            text = f"{where} says {error.smtp_code} {_text(error.smtp_error)}"
            return MailFault(text) if error.smtp_code >= _PERMANENT else _Passing(text)
        case ssl.SSLCertVerificationError():
            return MailFault(f"{where} cannot be trusted: {error.verify_message}; is server.ca right?")
        case _:
            return _Passing(f"{where} cannot be reached: {error}")


def _text(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
