"""The declaration of the kind ``remote``."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from http import HTTPStatus
from typing import Final

from pydantic import Field, field_validator

from auditord.client import AsyncClient, ClientError
from auditord.client.connection import Server
from auditord_builtin.remote.delivery import RemoteSender
from auditord_hookspecs import (
    AuditordError,
    Context,
    Duration,
    InstanceConfig,
    Secret,
    Sender,
    SenderContext,
    SenderKind,
)
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.http import HttpOptions
from auditord_hookspecs.sources import TlsFiles

MAX_BATCH: Final = 500
RETRY_SECONDS: Final = 0.1
_PATIENCE: Final = timedelta(seconds=10)


class RemoteConfig(InstanceConfig):
    """Ships records to an auditord or an AUDITOR elsewhere."""

    url: str = Field(description="Where it is: http://host:port or https://host:port.")
    open_records: bool = Field(
        default=False,
        description="Whether records without stop time go out as well; otherwise a record goes out when it ends.",
    )
    batch_size: int = Field(default=MAX_BATCH, ge=1, le=MAX_BATCH, description="How many records go into one request.")
    timeout: Duration = Field(
        default=timedelta(seconds=30), gt=timedelta(0), description="How long the server may be silent."
    )
    tls: TlsFiles = TlsFiles()
    token: Secret | None = Field(default=None, description="Sent as Authorization: Bearer; a reference to a secret.")

    @field_validator("url")
    @classmethod
    def _of_a_server(cls, url: str) -> str:
        try:
            return Server(url).url
        except ClientError as error:
            raise ValueError(str(error)) from error


@asynccontextmanager
async def open_remote(config: RemoteConfig, context: SenderContext) -> AsyncGenerator[Sender, None]:
    """A client for the destination; only sending shows that it is there."""
    client = AsyncClient(
        config.url,
        tls=config.tls,
        token=None if config.token is None else config.token.get_secret_value(),
        timeout=config.timeout.total_seconds(),
        retry_waits=(RETRY_SECONDS,),  # the host waits longer after each fault that stays, and says so
    )
    async with client:
        yield RemoteSender(client, context.log, open_records=config.open_records, batch_size=config.batch_size)


async def check(config: RemoteConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Ask the destination for its health; it is not asked whether it would take our records."""
    options = HttpOptions(tls=config.tls, timeout=_PATIENCE, attempts=1)
    try:
        async with context.http(options) as http:
            answer = await http.request("GET", f"{config.url}/health_check")
    except AuditordError as error:
        remedy = "is the server running, and are url and tls right? records wait in the spool until it answers"
        yield Finding(Severity.FAILURE, config.url, str(error), remedy)
        return
    if answer.status == HTTPStatus.OK:
        yield Finding(Severity.OK, config.url, "it answers, and is healthy")
    else:
        text = f"/health_check answers {answer.status}: it is not healthy, or no auditord and no AUDITOR"
        yield Finding(Severity.FAILURE, config.url, text, "auditord doctor over there, or correct url")


REMOTE: Final = SenderKind(name="remote", config=RemoteConfig, open=open_remote, batch_size=MAX_BATCH, check=check)
