"""The source of a plugin's records: this daemon, or an auditord or an AUDITOR elsewhere."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from auditord_hookspecs.config import Duration, RunConfig, Secret, Section


class TlsFiles(Section):
    """The trust in an ``https`` server, and the certificate that it is shown."""

    ca: Path | None = Field(
        default=None, description="PEM file of the authorities that vouch for it; by default those of the system."
    )
    certificate: Path | None = Field(default=None, description="PEM file of our certificate, if it wants to see one.")
    key: Path | None = Field(default=None, description="PEM file of its private key, unless it is in the same file.")

    @model_validator(mode="after")
    def _key_of_a_certificate(self) -> "TlsFiles":
        if self.key is not None and self.certificate is None:
            raise ValueError("a key needs a certificate: name both files")
        return self


def _server_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("this is no URL of a server: write http://host:port or https://host:port (and a path prefix)")
    if parts.username is not None:
        raise ValueError("a URL with a user name or password is not supported: give a token")
    return url.rstrip("/")


ServerUrl = Annotated[str, AfterValidator(_server_url)]
"""The URL of a server, without a slash at its end."""


class RemoteSource(Section):
    """An auditord, which is asked for sums, or an AUDITOR, whose records are read and summed up here."""

    url: ServerUrl = Field(description="Where it is: http://host:port or https://host:port.")
    tls: TlsFiles = Field(default_factory=TlsFiles, description="For https.")
    token: Secret | None = Field(default=None, description="Sent as Authorization: Bearer; a reference to a secret.")
    timeout: Duration = Field(
        default=timedelta(seconds=30), gt=timedelta(0), description="How long the server may be silent."
    )


class PluginConfig(RunConfig):
    """The options of every plugin: plugins derive their models from this.

    The host opens the source, so ``context.records`` is always the right one; a plugin never looks at it.
    """

    source: Literal["local"] | RemoteSource = Field(
        default="local",
        description="Whose records it works on: local (this daemon's record store), or url, tls, token and timeout of "
        "an auditord or an AUDITOR elsewhere. An answer that is cut fails the run.",
    )
