"""The option ``source`` of plugins: the records of this daemon, or of another auditord or AUDITOR."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from auditord_hookspecs.config import Duration, RunConfig, Secret, Section


class TlsFiles(Section):
    """The CA of an ``https`` server, and our client certificate for it."""

    ca: Path | None = Field(default=None, description="PEM file with the server's CA; default: the system's CAs.")
    certificate: Path | None = Field(
        default=None, description="PEM file of our certificate, if the server requires one."
    )
    key: Path | None = Field(
        default=None, description="PEM file of the certificate's key, unless it is in the same file."
    )

    @model_validator(mode="after")
    def _key_of_a_certificate(self) -> "TlsFiles":
        if self.key is not None and self.certificate is None:
            raise ValueError("a key needs a certificate: name both files")
        return self


def _server_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("this is not a server URL: write http://host:port or https://host:port (and a path prefix)")
    if parts.username is not None:
        raise ValueError("a URL with a user name or password is not supported: give a token")
    return url.rstrip("/")


ServerUrl = Annotated[str, AfterValidator(_server_url)]
"""The URL of a server, without a trailing slash."""


class RemoteSource(Section):
    """A remote server: an auditord computes sums itself; the records of an AUDITOR are read and summed up here."""

    url: ServerUrl = Field(description="The server's URL: http://host:port or https://host:port.")
    tls: TlsFiles = Field(default_factory=TlsFiles, description="CA and client certificate for https.")
    token: Secret | None = Field(default=None, description="The bearer token, as a reference to a secret.")
    timeout: Duration = Field(
        default=timedelta(seconds=30), gt=timedelta(0), description="How long to wait for the server."
    )


class PluginConfig(RunConfig):
    """The options of every plugin: plugins derive their models from this.

    The host opens the source and passes it as ``context.records``. Plugins do not read the option.
    """

    source: Literal["local"] | RemoteSource = Field(
        default="local",
        description="The records to work on: local (this daemon's record store), or url, tls, token and timeout of "
        "another auditord or AUDITOR. A truncated answer fails the run.",
    )
    run_at_start: bool = Field(
        default=False,
        description="True: a new plugin runs as soon as the daemon meets it. False: it waits for its first interval or "
        "start time, and so does one that is enabled again.",
    )
