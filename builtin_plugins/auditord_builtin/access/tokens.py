"""Authenticator ``tokens``: bearer tokens that ``auditord token create`` made."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Final

from auditord_builtin.access.token_file import StoredToken, TokenFile, take_apart
from auditord_hookspecs import InstanceConfig, access
from auditord_hookspecs.checks import ENDS_SOON, Finding, Severity
from auditord_hookspecs.wording import counted

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class TokensConfig(InstanceConfig):
    """Tokens of ``auditord token create``; each says itself which roles it has."""


def open_tokens(
    config: TokensConfig, context: access.AuthenticatorContext
) -> AbstractAsyncContextManager[access.Authenticate]:
    """The file is looked at for every request, so that a revoked token is refused at once."""
    del config
    file = TokenFile(context.state_dir)

    async def authenticate(credentials: access.Credentials) -> access.Identity | None:
        parts = None if credentials.token is None else take_apart(credentials.token)
        if parts is None:
            return None
        token_id, secret = parts
        stored = file.tokens().get(token_id)
        if stored is None or not stored.opens_with(secret):
            raise access.AccessRefused("a token that is none of ours, or was revoked")
        if stored.expires is not None and stored.expires <= context.now():
            raise access.AccessRefused(f"token {token_id} of {stored.name} has expired")
        return access.Identity(stored.name, stored.roles, stored.name)

    return nullcontext(authenticate)


async def check(config: TokensConfig, context: access.AuthenticatorContext) -> AsyncGenerator[Finding, None]:
    """Look for owners whose last token ends soon, or has ended."""
    del config
    last: dict[str, StoredToken] = {}
    for each in sorted(TokenFile(context.state_dir).tokens().values(), key=_end):
        last[each.name] = each
    for name, token in sorted(last.items()):
        subject, left = f"token of {name}", None if token.expires is None else token.expires - context.now()
        remedy = f"auditord token create {name}, give it to the owner, then auditord token revoke {token.token_id}"
        if left is None:
            yield Finding(Severity.OK, subject, f"{token.token_id} does not end")
        elif left <= timedelta(0):
            text = f"{token.token_id} ended at {token.expires:%Y-%m-%d %H:%M} UTC: whoever still uses it is refused"
            yield Finding(Severity.WARNING, subject, text, f"{remedy}; revoke it alone if nobody needs it any more")
        else:
            severity = Severity.WARNING if left < ENDS_SOON else Severity.OK
            text = (
                f"{token.token_id} is valid until {token.expires:%Y-%m-%d %H:%M} UTC, for {counted(left.days, 'day')}"
            )
            yield Finding(severity, subject, text, remedy if severity is Severity.WARNING else "")


def _end(token: StoredToken) -> datetime:
    return token.expires or _NEVER


KIND = access.AuthenticatorKind(
    name="tokens", config=TokensConfig, open=open_tokens, roles=lambda _: (), names_users=lambda _: True, check=check
)
