"""An ARGO Messaging Service on this machine: TLS that demands a client certificate, tokens, topics.

What it is given it takes apart as APEL's receiver does: base64, ASCII, ``openssl smime -verify``, the blank line behind
the header of the signed part, quoted-printable.
"""

import base64
import quopri
import ssl
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web

from auditord_builtin.apel.config import MessagingConfig
from tests.host_certificates import Authority, HostFiles

LIMIT: Final = 1_000_000


@dataclass
class AmsBroker:
    """The broker's state.

    Args:
        url: where it is.
        authority: whose signatures it believes.
        fault: a status to answer a publication with, asked once per request with its number; None: all is well.
            0 cuts the connection before anything happens, -1 after the message was taken.
        published: the label and the signed bytes of each message, in order.
        topics: where each of them went.
        tokens: how many were given.
        limit: of a message in base64.
    """

    authority: Authority
    url: str = ""
    fault: Callable[[int], int | None] = lambda _number: None
    published: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    topics: list[str] = field(default_factory=list[str])
    tokens: int = 0
    limit: int = LIMIT
    requests: int = 0

    @property
    def valid_token(self) -> str:
        """The last one that was given."""
        return f"token-{self.tokens}"

    def texts(self) -> list[str]:
        """The messages as APEL reads them, their signatures verified."""
        return [receive(body, self.authority.file) for _, body in self.published]

    def for_client(self, files: HostFiles, **more: object) -> MessagingConfig:
        """The options by which a client with a certificate finds it."""
        options = {
            "auth_url": f"{self.url}/v1/service-types/ams/hosts/127.0.0.1:authx509",
            "ams_url": f"{self.url}/v1/projects/accounting/topics/gLite-APEL:publish",
            "client_cert": files.certificate,
            "client_key": files.key,
            "ca_path": self.authority.file,
        }
        return MessagingConfig.model_validate(options | more)

    async def give_token(self, request: web.Request) -> web.Response:
        """The path that wants a certificate; TLS has seen one, or we were not here."""
        assert request.transport is not None
        assert request.transport.get_extra_info("peercert")
        self.tokens += 1
        return web.json_response({"token": self.valid_token})

    async def take_message(self, request: web.Request) -> web.Response:
        """The path that wants the token."""
        self.requests += 1
        fault = self.fault(self.requests)
        if fault == 0:
            return _cut(request)
        if fault is not None and fault > 0:
            return _refusal(fault)
        if request.headers.get("x-api-key") != self.valid_token:
            return _refusal(HTTPStatus.UNAUTHORIZED)
        [message] = (await request.json())["messages"]
        if len(message["data"]) > self.limit:
            return _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        self.topics.append(request.match_info["topic"])
        self.published.append((message["attributes"]["empaid"], base64.b64decode(message["data"])))
        return _cut(request) if fault == -1 else web.json_response({"messageIds": [str(len(self.published))]})


def receive(body: bytes, authority: Path) -> str:
    """The text of a signed message.

    Raises:
        ValueError: APEL's receiver would not take it.
    """
    if "application/pkcs7-mime" in body.decode("ascii"):
        raise ValueError("taken for encrypted")
    command = ["openssl", "smime", "-verify", "-CAfile", str(authority), "-purpose", "any"]
    verified = subprocess.run(command, input=body, capture_output=True, check=False)
    if verified.returncode:
        raise ValueError(verified.stderr.decode())
    header, blank, text = verified.stdout.replace(b"\r\n", b"\n").partition(b"\n\n")
    if not blank:
        raise ValueError("no blank line behind the header")
    return (quopri.decodestring(text) if b"quoted-printable" in header else text).decode()


@asynccontextmanager
async def ams_broker(authority: Authority) -> AsyncGenerator[AmsBroker, None]:
    """A running broker on a free port."""
    broker = AmsBroker(authority)
    application = web.Application(client_max_size=1 << 24)
    application.router.add_get("/v1/service-types/ams/hosts/127.0.0.1:authx509", broker.give_token)
    application.router.add_post("/v1/projects/accounting/topics/{topic}:publish", broker.take_message)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_server_side(authority))
        await site.start()
        broker.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        yield broker
    finally:
        await runner.cleanup()


def _server_side(authority: Authority) -> ssl.SSLContext:
    files = authority.issue("broker.example.org", old_style_key=False)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.file)
    context.load_cert_chain(files.certificate, files.key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def _refusal(status: int) -> web.Response:
    return web.json_response({"error": {"code": status, "message": "not so"}}, status=status)
