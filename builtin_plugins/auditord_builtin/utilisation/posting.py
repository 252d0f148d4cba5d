"""Mails on their way to a mail server, by SMTP: what passes is tried again, what is refused is told apart from it."""

import smtplib
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from email.message import EmailMessage
from typing import Final

import anyio
import anyio.to_thread

from auditord_builtin.utilisation.config import Server
from auditord_hookspecs import AuditordError

_PERMANENT: Final = 500


class MailFault(AuditordError):
    """The mail server cannot be used now: no recipient would get anything."""


class RecipientBusy(AuditordError):
    """The server does not take mail for this recipient now."""


class RecipientRefused(AuditordError):
    """The server does not take this mail for this recipient."""


class Courier:
    """Takes mails to a server, over one connection as long as it holds. For one task at a time.

    Args:
        server: where to, and how.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: smtplib.SMTP | None = None

    async def deliver(self, message: EmailMessage) -> None:
        """Hand a mail over to the server.

        Raises:
            RecipientRefused: it is refused for good.
            RecipientBusy: it is refused for now, also when tried again.
            MailFault: the server is away, does not let us in, or cannot be trusted.
        """
        wait = self._server.retry_wait
        for _ in range(self._server.retries):
            try:
                return await self._try(message)
            except (_Passing, RecipientBusy):
                await anyio.sleep(wait / timedelta(seconds=1))
                wait *= 2
        try:
            return await self._try(message)
        except _Passing as error:
            raise MailFault(str(error)) from error

    async def _try(self, message: EmailMessage) -> None:
        await anyio.to_thread.run_sync(self._send, message)

    def close(self) -> None:
        """Take leave of the server."""
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
            raise _refusal(f"{message['To']}: {where} says {code} {_told(text)}", code) from error
        except smtplib.SMTPDataError as error:
            raise _refusal(
                f"{message['To']}: {where} says {error.smtp_code} {_told(error.smtp_error)}", error.smtp_code
            ) from error
        except smtplib.SMTPNotSupportedError as error:
            self._drop()
            raise MailFault(f"{where} cannot do what is asked of it: {error}") from error
        except smtplib.SMTPResponseException as error:
            self._drop()
            fault = f"{where} says {error.smtp_code} {_told(error.smtp_error)}"
            raise (MailFault(fault) if error.smtp_code >= _PERMANENT else _Passing(fault)) from error
        except ssl.SSLCertVerificationError as error:
            self._drop()
            raise MailFault(f"{where} cannot be trusted: {error.verify_message}; is server.ca right?") from error
        except (smtplib.SMTPException, OSError) as error:
            self._drop()
            raise _Passing(f"{where} cannot be reached: {error}") from error

    def _open(self) -> smtplib.SMTP:
        if self._connection is None:
            self._connection = _connect(self._server)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Passing(AuditordError):
    """A fault that may be gone in a moment."""


@asynccontextmanager
async def courier_to(server: Server) -> AsyncGenerator[Courier, None]:
    """A courier; the server is first spoken to when there is a mail."""
    courier = Courier(server)
    try:
        yield courier
    finally:
        with anyio.CancelScope(shield=True):  # the timeout of the server bounds it
            await anyio.to_thread.run_sync(courier.close)


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


def _told(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
