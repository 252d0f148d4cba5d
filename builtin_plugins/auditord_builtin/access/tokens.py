"""Authenticator ``tokens``: bearer tokens that ``auditord token create`` made."""

from contextlib import AbstractAsyncContextManager, nullcontext

from auditord_builtin.access.token_file import TokenFile, take_apart
from auditord_hookspecs import InstanceConfig, access


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


KIND = access.AuthenticatorKind(
    name="tokens", config=TokensConfig, open=open_tokens, roles=lambda _: (), names_users=lambda _: True
)
