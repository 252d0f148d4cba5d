"""TLS of the listeners: contexts from the configured files, and whether the files have changed since."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

from auditord.config.listen import ListenTls
from auditord.errors import ConfigurationError

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: authenticated, and with keys that a stolen server key does not reveal. TLS 1.3 has no others."""

Fingerprint: TypeAlias = Sequence[tuple[int, int, int] | None]
"""The stamps that change with files, links followed; None for one that is not there."""


def server_context(tls: ListenTls) -> ssl.SSLContext:
    """The TLS context of a listener; the files are read now.

    Raises:
        ConfigurationError: a file cannot be read or used; the text names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.minimum]
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _load(context, tls)
    return context


def fingerprint(tls: ListenTls) -> Fingerprint:
    """The fingerprint of the files as they are."""
    return [_of_file(path) for path in tls.files]


def _load(context: ssl.SSLContext, tls: ListenTls) -> None:
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        files = tls.certificate if tls.key is None else f"{tls.certificate} with the key {tls.key}"
        raise ConfigurationError(f"api.listen: cannot use the certificate {files}: {_words(error)}") from error
    if tls.client_ca is None:
        return
    try:
        context.load_verify_locations(cafile=tls.client_ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"api.listen: cannot use client_ca {tls.client_ca}: {_words(error)}") from error
    context.verify_mode = ssl.CERT_REQUIRED if tls.client_certificate == "required" else ssl.CERT_OPTIONAL
    # A resumed session would show a certificate that was checked by authorities of long ago.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted, and a daemon has nobody to ask for its passphrase")


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return "the key is not the certificate's"
    return error.strerror or str(error)


def _of_file(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
