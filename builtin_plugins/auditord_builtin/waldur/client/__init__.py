"""The client of Waldur's API: the requests that reporting needs, and no others."""

import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import aiohttp

from auditord_builtin.waldur.client.access import Access, ClientCredentials, StaticToken
from auditord_builtin.waldur.client.answers import (
    ComponentUsage,
    ComponentUserUsage,
    Offering,
    OfferingComponent,
    OfferingUser,
    Permission,
    Resource,
    User,
    Version,
)
from auditord_builtin.waldur.client.errors import (
    AccessDenied,
    Answered,
    DateIgnored,
    InvalidAnswer,
    Refused,
    ServerFailed,
    Unreachable,
    WaldurError,
)
from auditord_builtin.waldur.client.pacing import Clock, Pacing
from auditord_builtin.waldur.client.transport import Transport
from auditord_builtin.waldur.client.waldur import Show, WaldurClient
from auditord_builtin.waldur.config import WaldurConfig

__all__ = [
    "AccessDenied",
    "Answered",
    "Clock",
    "ComponentUsage",
    "ComponentUserUsage",
    "DateIgnored",
    "InvalidAnswer",
    "Offering",
    "OfferingComponent",
    "OfferingUser",
    "Permission",
    "Refused",
    "Resource",
    "ServerFailed",
    "Show",
    "Unreachable",
    "User",
    "Version",
    "WaldurClient",
    "WaldurError",
    "open_client",
]

USER_AGENT = "auditord-waldur"


def _unobserved(status: str) -> None:
    del status


@asynccontextmanager
async def open_client(
    config: WaldurConfig,
    *,
    show: Show | None = None,
    observe: Callable[[str], None] = _unobserved,
    clock: Clock | None = None,
) -> AsyncGenerator[WaldurClient, None]:
    """A client for the offering of an instance. Nothing is asked before the first method is called.

    Args:
        config: where, which offering, and who we are.
        show: makes a dry run: gets the text of each request that would write.
        observe: hears of every attempt: the status of the answer as text, or ``none``.
        clock: time and chance, for tests.

    Raises:
        WaldurError: the file of authorities cannot be used.
    """
    time = clock or Clock()
    pacing = Pacing(config.retry_for.total_seconds(), time)
    connector = aiohttp.TCPConnector(ssl=_trust(config), limit=config.concurrent_requests)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=config.request_timeout.total_seconds()),
        headers={"User-Agent": USER_AGENT, "Accept": "application/json"},
    ) as session:
        yield WaldurClient(
            base=config.waldur_api_url.removesuffix("/api/"),
            offering=config.waldur_offering_uuid,
            session=session,
            proxy=config.proxy,
            access=_access(config, session, time),
            transport=Transport(pacing, observe),
            pacing=pacing,
            concurrency=config.concurrent_requests,
            show=show,
        )


def _trust(config: WaldurConfig) -> ssl.SSLContext | bool:
    if config.ca_file is None or not config.verify_ssl:
        return config.verify_ssl
    try:
        return ssl.create_default_context(cafile=config.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise WaldurError(f"cannot use the file of authorities {config.ca_file}: {error}") from error


def _access(config: WaldurConfig, session: aiohttp.ClientSession, clock: Clock) -> Access:
    if config.waldur_api_token is not None:
        return StaticToken(config.waldur_api_token.get_secret_value())
    if config.oidc_token_url is None or config.oidc_client_id is None or config.oidc_client_secret is None:
        raise WaldurError("neither a token nor all of the options of OpenID Connect are configured")
    secret = config.oidc_client_secret.get_secret_value()
    form = {"grant_type": "client_credentials", "client_id": config.oidc_client_id, "client_secret": secret}
    return ClientCredentials(config.oidc_token_url, form, session, config.proxy, clock.monotonic)
