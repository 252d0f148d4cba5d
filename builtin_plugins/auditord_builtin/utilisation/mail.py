"""Mail reports: choose the recipients, build the mails, and send each mail once."""

import hashlib
import logging
import re
import smtplib
import ssl
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Final

import anyio
import anyio.to_thread
import msgspec
import stamina

from auditord_builtin.utilisation.config import Level, Mail, Server, UserMail, UtilisationConfig
from auditord_builtin.utilisation.periods import Period
from auditord_builtin.utilisation.report import Report, as_csv, as_html, as_text, heading, report_on
from auditord_builtin.utilisation.state import MAILS, MOST_TRIES, ReportedState, Series
from auditord_builtin.utilisation.usage import HOUR, Usage, Usages, Who
from auditord_hookspecs import AuditordError, PluginContext

TIMEOUT_SECONDS: Final = 30.0
RETRIES: Final = 2
"""Retries per mail within one run."""

RETRY_WAIT: Final = timedelta(seconds=10)
"""The pause before the first retry; it doubles each time."""

LEAST_CORE_TIME: Final = HOUR
"""Users with less core time in a period get no mail."""

_PERMANENT: Final = 500


class MailFault(AuditordError):
    """The mail server cannot be used now, for any recipient.

    Remedy:
        check the server in the plugin's option `mail`; `auditord doctor` logs in to it without sending a mail. The next
        run sends the mails.
    """


class RecipientBusy(AuditordError):
    """The server accepts no mail for this recipient at the moment.

    Remedy:
        none: the mail is sent again later.
    """


class RecipientRefused(AuditordError):
    """The server does not accept this mail for this recipient.

    Remedy:
        correct the address in the configuration.
    """


class _Passing(MailFault):
    """A temporary error, which is retried."""


def message_of(report: Report, mail: Mail, instance: str, recipient: str, now: datetime) -> EmailMessage:
    """Return the mail with a report for one recipient.

    Its Message-ID is always the same, so that a mail sent again after a lost answer can be recognised.
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
    message.add_attachment(as_csv(report), subtype="csv", filename=f"{instance}-{report.period.name}.csv")
    return message


class MailServer:
    """A connection to the mail server, which is reopened if it was lost. Use it in one task at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: smtplib.SMTP | None = None

    async def send(self, message: EmailMessage) -> None:
        """Send a mail. Temporary errors are retried after pauses that double each time.

        Raises:
            RecipientRefused: the server refuses the mail permanently.
            RecipientBusy: the server still refuses the mail temporarily after all retries.
            MailFault: the server is unreachable, refuses the login, or cannot be trusted.
        """
        async for attempt in stamina.retry_context(
            on=(_Passing, RecipientBusy),
            attempts=RETRIES + 1,
            timeout=None,
            wait_initial=RETRY_WAIT,
            wait_max=RETRY_WAIT * 2**RETRIES,
            wait_jitter=0,
        ):
            with attempt:
                await anyio.to_thread.run_sync(self._send, message)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(smtplib.SMTPException, OSError):  # an error now does not undo a delivery
                connection.quit()
            connection.close()

    def _send(self, message: EmailMessage) -> None:
        where = f"mail server {self._server.host}:{self._server.port_number}"
        try:
            if self._connection is None:
                self._connection = _connect(self._server)
            self._connection.send_message(message)
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


@asynccontextmanager
async def mail_server(server: Server) -> AsyncGenerator[MailServer, None]:
    """Open a mail server. It connects when the first mail is sent."""
    opened = MailServer(server)
    try:
        yield opened
    finally:
        with anyio.CancelScope(shield=True):  # limited by the server's timeout
            await anyio.to_thread.run_sync(opened.close)


async def greet(server: Server) -> None:
    """Connect to the server, and log in if a user is configured.

    Raises:
        MailFault: the server is unreachable, refuses the login, or cannot be trusted.
    """

    def connect() -> None:
        try:
            with _connect(server):
                return
        except (smtplib.SMTPException, OSError) as error:
            raise _fault(f"mail server {server.host}:{server.port_number}", error) from error

    await anyio.to_thread.run_sync(connect)


def _connect(server: Server) -> smtplib.SMTP:
    trust = ssl.create_default_context(cafile=None if server.ca is None else str(server.ca))
    if server.security == "ssl":
        connection: smtplib.SMTP = smtplib.SMTP_SSL(
            server.host, server.port_number, timeout=TIMEOUT_SECONDS, context=trust
        )
    else:
        connection = smtplib.SMTP(server.host, server.port_number, timeout=TIMEOUT_SECONDS)
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
            return MailFault(f"{where} lacks a feature that the options require: {error}")
        case smtplib.SMTPResponseException():
            text = f"{where} says {error.smtp_code} {_text(error.smtp_error)}"
            return MailFault(text) if error.smtp_code >= _PERMANENT else _Passing(text)
        case ssl.SSLCertVerificationError():
            return MailFault(f"{where} cannot be trusted: {error.verify_message}; is server.ca right?")
        case _:
            return _Passing(f"{where} cannot be reached: {error}")


def _text(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._+-]{0,62}[A-Za-z0-9])?")


class Addressed(msgspec.Struct, frozen=True):
    """A report for one recipient. ``key`` is the recipient's name in the state."""

    key: str
    address: str
    report: Report


class Undelivered(msgspec.Struct, frozen=True):
    """The errors of mails that were refused (retried for some days) or met a busy server (retried by the next run)."""

    refused: Sequence[str] = ()
    busy: Sequence[str] = ()


class Delivery(msgspec.Struct, frozen=True):
    """Delivers reports by mail. The state records who has received which report."""

    mail: Mail
    context: PluginContext
    state: ReportedState

    async def deliver(self, series: Series, period: Period, reports: Sequence[Addressed]) -> Undelivered:
        """Send each report that its recipient should get now.

        Raises:
            MailFault: the server cannot be used. The next run sends the remaining mails.
        """
        by_key = {each.key: each for each in reports}
        owed = [by_key[key] for key in self.state.list_due(series, period, list(by_key))]
        if self.context.dry_run:
            for each in owed:
                self.context.show(f"would mail to {each.address}:")
                self.context.show(as_text(each.report, self.mail.most_rows))
            return Undelivered()
        async with mail_server(self.mail.server) as server:
            refused: list[str] = []
            busy: list[str] = []
            for each in owed:
                outcome, instance = "failed", self.context.instance
                message = message_of(each.report, self.mail, instance, each.address, self.context.now())
                try:
                    await server.send(message)
                except RecipientRefused as error:
                    outcome = "refused"
                    tries = await self.state.note_refused(series, period, each.key, str(error))
                    refused.append(f"{error} (try {tries} of {MOST_TRIES})")
                except RecipientBusy as error:
                    busy.append(str(error))
                else:
                    outcome = "sent"
                    await self.state.note_sent(series, period, each.key)
                    self.context.log.info("sent the report on %s to %s", period.name, each.address)
                finally:
                    MAILS.labels(instance, outcome).inc()
            return Undelivered(refused, busy)


def reports_to_users(
    usages: Usages,
    config: UtilisationConfig,
    options: UserMail,
    period: Period,
    log: "logging.LoggerAdapter[logging.Logger]",
) -> Sequence[Addressed]:
    """Return a report for each user with an address and enough usage, on the user's own jobs."""
    own: defaultdict[str, dict[Who, Usage]] = defaultdict(dict)
    for who, usage in usages.items():
        if who.user is not None:
            own[who.user][who] = usage
    levels = config.model_copy(update={"levels": (Level.SITE, Level.GROUP, Level.GROUP_TOTAL)})
    reports: list[Addressed] = []
    for user, theirs in sorted(own.items()):
        core_time = sum(usage.core_time for usage in theirs.values())
        address = address_of(user, options)
        if address is None:
            log.info("the user %r has no mail address", user)
        elif core_time >= LEAST_CORE_TIME:
            title = f"{config.title}: your jobs"
            reports.append(Addressed(user, address, report_on(theirs, levels, period, title=title)))
    return reports


def address_of(user: str, options: UserMail) -> str | None:
    """Return the address of a user, or None if none is configured or the name cannot be part of one."""
    if user in options.addresses:
        return options.addresses[user]
    if options.address is None or not _NAME.fullmatch(user):
        return None
    return options.address.replace("{user}", user)
