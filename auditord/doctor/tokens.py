"""Check the expiry of JSON Web Tokens (RFC 7519) in configuration sections, for ``auditord doctor``."""

import base64
import binascii
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from auditord.config.documents import Path as OptionPath
from auditord.config.faults import dotted
from auditord.config.files import secrets_in
from auditord.config.secrets import latest
from auditord_hookspecs import Section
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.wording import counted

_ENDS_SOON: Final = timedelta(days=14)
_PARTS: Final = 3


class _Claims(msgspec.Struct, frozen=True):
    """The times in a token: expiry and issue, in seconds since 1970."""

    exp: float
    iat: float | None = None


def check_tokens(section: Section, now: datetime) -> Iterator[Finding]:
    """Yield a finding for each secret of a section that is a JSON Web Token; other secrets are ignored."""
    for path, secret in secrets_in(section):
        if (claims := _claims(latest(secret))) is not None:
            yield _finding(path, claims, now)


def _claims(token: str) -> _Claims | None:
    parts = token.split(".")
    if len(parts) != _PARTS:
        return None
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(text, type=_Claims)
    except (binascii.Error, ValueError):
        return None


def _finding(path: OptionPath, claims: _Claims, now: datetime) -> Finding:
    subject = dotted(path)
    try:
        end = datetime.fromtimestamp(claims.exp, UTC)
    except (OverflowError, ValueError, OSError):
        return Finding(Severity.OK, subject, "its expiry time is not a valid date")
    text = f"valid until {end:%Y-%m-%d %H:%M} UTC"
    if end <= now:
        return Finding(Severity.FAILURE, subject, f"expired: it was {text}", "put a new token there")
    is_short_lived = claims.iat is not None and claims.exp - claims.iat <= _ENDS_SOON.total_seconds()
    if end - now < _ENDS_SOON and not is_short_lived:  # a program renews short-lived tokens
        return Finding(Severity.WARNING, subject, f"{text}, for {counted((end - now).days, 'day')}", "renew it")
    return Finding(Severity.OK, subject, text)
