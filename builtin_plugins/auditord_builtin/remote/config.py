"""The options of a remote sender."""

from datetime import timedelta

from pydantic import Field, field_validator

from auditord.client import ClientError, Tls
from auditord.client.connection import Server
from auditord_hookspecs import Duration, InstanceConfig, Secret
from auditord_hookspecs.sources import TlsFiles

MAX_BATCH = 500


class TlsSection(TlsFiles):
    """How an ``https`` server is trusted, and what it is shown."""

    def client_side(self) -> Tls:
        """The same for the client."""
        return Tls(self.ca, self.certificate, self.key)


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
    tls: TlsSection = TlsSection()
    token: Secret | None = Field(default=None, description="Sent as Authorization: Bearer; a reference to a secret.")

    @field_validator("url")
    @classmethod
    def _of_a_server(cls, url: str) -> str:
        try:
            return Server(url).url
        except ClientError as error:
            raise ValueError(str(error)) from error
