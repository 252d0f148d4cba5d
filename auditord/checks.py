"""Checks that several parts of ``auditord doctor`` share: certificates with their keys, and tokens that expire."""

import base64
import binascii
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from auditord.config.documents import Path as OptionPath
from auditord.config.faults import join_path
from auditord.config.files import secrets_in
from auditord.config.secrets import latest
from auditord_hookspecs import Section
from auditord_hookspecs.checks import Finding, Severity, check_certificate, check_readable
from auditord_hookspecs.wording import counted

Places: TypeAlias = Iterator[tuple[str, AsyncIterator[Finding]]]
"""Pairs of a place in the configuration and its checks: the result of a feature's ``feature_checks``."""

_ENDS_SOON: Final = timedelta(days=14)
_PARTS: Final = 3


def check_pair(ca: Path | None, certificate: Path | None, key: Path | None, now: datetime) -> Iterator[Finding]:
    """Check the dates of certificates, and the key of our own certificate. The key may be in the same file."""
    for file in filter(None, (ca, certificate)):
        yield check_certificate(file, now)
    if key is not None:
        readable = check_readable(key, "let only this user read it")
        yield readable
        if certificate is not None and readable.severity is Severity.OK:
            try:
                # Never prompt for a password. An encrypted key fails here as it fails for the code that uses it.
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password=lambda: b"")
            except (ssl.SSLError, OSError, ValueError) as error:
                text = f"{key} is not the key of {certificate}: {error}"
                yield Finding(Severity.FAILURE, "key", text, "use the key that belongs to the certificate")
            else:
                yield Finding(Severity.OK, "key", f"{key} is the key of {certificate}")


class _Claims(msgspec.Struct, frozen=True):
    """The times in a token: expiry and issue, in seconds since 1970."""

    exp: float
    iat: float | None = None


def check_tokens(section: Section, now: datetime) -> Iterator[Finding]:
    """Yield a finding for each secret of a section that is a JSON Web Token (RFC 7519); other secrets are ignored."""
    for path, secret in secrets_in(section):
        parts = latest(secret).split(".")
        if len(parts) != _PARTS:
            continue
        try:
            text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
            claims = msgspec.json.decode(text, type=_Claims)
        except (binascii.Error, ValueError):
            continue
        yield _finding(path, claims, now)


def _finding(path: OptionPath, claims: _Claims, now: datetime) -> Finding:
    subject = join_path(path)
    try:
        end = datetime.fromtimestamp(claims.exp, UTC)
    except (OverflowError, ValueError, OSError):
        return Finding(Severity.OK, subject, "its expiry time is not a valid date")
    text = f"valid until {end:%Y-%m-%d %H:%M} UTC"
    if end <= now:
        return Finding(Severity.FAILURE, subject, f"expired: it was {text}", "replace it with a new token")
    is_short_lived = claims.iat is not None and claims.exp - claims.iat <= _ENDS_SOON.total_seconds()
    if end - now < _ENDS_SOON and not is_short_lived:  # a program renews short-lived tokens
        return Finding(Severity.WARNING, subject, f"{text}, for {counted((end - now).days, 'day')}", "renew it")
    return Finding(Severity.OK, subject, text)
