"""The authenticator ``jwt``: access tokens of an OpenID Connect issuer. Verifying them needs the extra ``jwt``."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from auditord_builtin.access.connections import list_roles
from auditord_builtin.access.jwt_config import JwtConfig
from auditord_hookspecs import AuditordError, Authenticate, AuthenticatorContext, AuthenticatorKind, Context
from auditord_hookspecs.checks import Finding, Severity, check_certificate, check_extra


@asynccontextmanager
async def open_jwt(config: JwtConfig, context: AuthenticatorContext) -> AsyncGenerator[Authenticate, None]:
    """Open the authenticator. The issuer is first contacted for a token or login, so the daemon starts without it.

    Raises:
        ValueError: PyJWT is not installed, or the CA file cannot be read.
    """
    try:
        from auditord_builtin.access import jwt_checking  # noqa: PLC0415 an extra
    except ImportError as error:
        raise ValueError(f"this needs pip install 'auditord[jwt]' ({error})") from error
    async with jwt_checking.open_issuer(config, context) as (issuer, http):
        if config.login is None:
            yield issuer
        else:
            description = jwt_checking.Description(config, http, context.now)
            yield jwt_checking.IssuerLogin(issuer, config.login, http, description)


async def check(config: JwtConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Check PyJWT and the CA file, and fetch the issuer's keys."""
    found = [check_extra("jwt", "jwt")]
    if config.ca is not None:
        found.append(check_certificate(config.ca, context.now()))
    for each in found:
        yield each
    if any(each.severity is Severity.FAILURE for each in found):
        return
    from auditord_builtin.access import jwt_checking  # noqa: PLC0415 an extra

    try:
        async with context.http(jwt_checking.http_options(config)) as http:
            keys = jwt_checking.public_keys(await jwt_checking.key_set(config, http))
    except (jwt_checking.KeysUnavailable, AuditordError) as error:
        remedy = "check issuer, jwks and ca against the issuer; without its keys every token is refused"
        yield Finding(Severity.FAILURE, "keys", str(error), remedy)
        return
    if keys:
        yield Finding(Severity.OK, "keys", f"{config.issuer} has {len(keys)} keys for signatures")
    else:
        text = f"{config.issuer} has no public key for signatures"
        yield Finding(Severity.FAILURE, "keys", text, "is jwks right?")


KIND: Final = AuthenticatorKind(
    "jwt",
    JwtConfig,
    open_jwt,
    roles=lambda config: list_roles(config.rules),
    names_users=lambda config: config.user_claim is not None,
    check=check,
)
