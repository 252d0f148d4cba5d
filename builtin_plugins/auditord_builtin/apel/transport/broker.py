"""Where the broker is and how it is trusted."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from auditord_builtin.apel.transport.errors import CertificateUnusable

RETRY_WAITS: Final = (1.0, 5.0, 20.0)

MAX_ENCODED: Final = 900_000
"""Bytes of a message in base64; the broker's limit is 1 MB for all of a message."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A topic of an ARGO Messaging Service (AMS), for clients with certificates.

    Args:
        token_url: answers the client's certificate with a token.
        publish_url: takes messages.
        certificate: PEM file of our own certificate, with its chain.
        key: PEM file of its private key.
        ca: PEM file, or folder with hashed names, of the authorities that may vouch for the broker; None: the system's.
        verify: whether the broker must prove who it is.
        token: a ready one, instead of asking for one.
        limit: bytes of a message in base64, above which it is not even tried.
        timeout: seconds that one request may take.
        retry_waits: seconds before each further attempt after a passing fault.
    """

    token_url: str
    publish_url: str
    certificate: Path
    key: Path
    ca: Path | None = None
    verify: bool = True
    token: str | None = field(default=None, repr=False)
    limit: int = MAX_ENCODED
    timeout: float = 60.0
    retry_waits: tuple[float, ...] = field(default=RETRY_WAITS)

    def tls(self) -> ssl.SSLContext:
        """What connections are made with; the files are read now.

        Raises:
            CertificateUnusable: a file cannot be read or used.
        """
        try:
            context = self._trust()
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(file) for file in (self.ca, self.certificate, self.key) if file)
            raise CertificateUnusable(f"cannot use the TLS files {files}: {error}") from error
        return context

    def _trust(self) -> ssl.SSLContext:
        folder = self.ca is not None and self.ca.is_dir()
        context = ssl.create_default_context(cafile=None if folder else self.ca, capath=self.ca if folder else None)
        if not self.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


def token_url(host: str, port: int) -> str:
    """Where AMS gives tokens for certificates."""
    return f"https://{host}:{port}/v1/service-types/ams/hosts/{host}:authx509"


def publish_url(host: str, project: str, topic: str, port: int = 443) -> str:
    """Where AMS takes the messages of a topic."""
    return f"https://{host}:{port}/v1/projects/{quote(project, safe='')}/topics/{quote(topic, safe='')}:publish"


def other_topic(url: str, topic: str) -> str:
    """Where the same broker takes the messages of another topic.

    Raises:
        ValueError: the address is not of the form that :func:`publish_url` makes.
    """
    before, found, _ = url.rpartition("/topics/")
    if not found:
        raise ValueError(f"{url} names no topic; AMS has .../topics/TOPIC:publish")
    return f"{before}/topics/{quote(topic, safe='')}:publish"
