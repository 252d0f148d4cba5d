"""A mail server for tests, on a port of its own: it keeps mails, refuses, asks for a password, speaks TLS."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Final

import anyio
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

HOST: Final = "127.0.0.1"


@dataclass
class Mailbox:
    """The state of a mail server; aiosmtpd calls the methods that begin with ``handle_``.

    Args:
        answers: by recipient, what is said instead of 250; of several, each once, the last for ever.
        after_data: said, one after the other, when a mail is there, instead of 250.
        mails: those that were taken, in order.
        port: where the server listens.
        logins: names and passwords that were given.
    """

    answers: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    after_data: list[str] = field(default_factory=list[str])
    mails: list[EmailMessage] = field(default_factory=list[EmailMessage])
    port: int = 0
    logins: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])

    def to(self, recipient: str) -> list[EmailMessage]:
        """The mails to somebody."""
        return [mail for mail in self.mails if mail["To"] == recipient]

    async def handle_RCPT(  # noqa: N802 aiosmtpd's name
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Take a recipient, or not."""
        del server, session, options
        answers = self.answers.get(address, [])
        if answers:
            return answers.pop(0) if len(answers) > 1 else answers[0]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 the same
        """Take a mail, or not."""
        del server, session
        if self.after_data:
            return self.after_data.pop(0)
        assert isinstance(envelope.content, bytes)
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        return "250 OK"

    def authenticate(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        """Let in whoever knows the password."""
        del server, session, envelope, mechanism
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"secret", handled=False)


@asynccontextmanager
async def mail_server(
    mailbox: Mailbox, *, tls: ssl.SSLContext | None = None, implicit: bool = False, password: bool = False
) -> AsyncGenerator[Mailbox, None]:
    """The server, until the context is left; the next one with this mailbox listens on the same port.

    Args:
        mailbox: what it does and gets.
        tls: its side of TLS, offered by STARTTLS and demanded.
        implicit: TLS from the first byte instead.
        password: whether a login is demanded; aiosmtpd allows that over STARTTLS only.
    """

    def session() -> SMTP:
        return SMTP(
            mailbox,
            hostname="mx.example.org",
            tls_context=None if implicit else tls,
            require_starttls=tls is not None and not implicit,
            authenticator=mailbox.authenticate if password else None,
            auth_required=password,
            auth_require_tls=True,
        )

    loop = asyncio.get_running_loop()
    server = await loop.create_server(session, HOST, mailbox.port, ssl=tls if implicit else None)
    mailbox.port = server.sockets[0].getsockname()[1]
    try:
        yield mailbox
    finally:
        server.close()
        await anyio.lowlevel.checkpoint()
        await server.wait_closed()
