"""A diagnosis of all between an installation and right amounts in Waldur: one line for each small question.

Nothing is written anywhere.
"""

from collections.abc import AsyncIterator

from auditord_builtin.waldur.answers import User
from auditord_builtin.waldur.client import WaldurClient
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.diagnosis import offering as held_against
from auditord_builtin.waldur.diagnosis import sources
from auditord_builtin.waldur.diagnosis.findings import as_line, fail, note, ok
from auditord_builtin.waldur.errors import AccessDenied, InvalidAnswer, Unreachable, WaldurError
from auditord_hookspecs import PluginContext
from auditord_hookspecs.checks import Finding

__all__ = ["as_line", "diagnose"]


async def diagnose(
    config: WaldurConfig, context: PluginContext, client: WaldurClient, *, sacct: bool
) -> AsyncIterator[Finding]:
    """Look at everything; what cannot be looked at is a finding, too. ``sacct``: amounts come from there."""
    for each in held_against.tls(config):
        yield each
    user: User | None = None
    try:
        user = await client.me()
    except WaldurError as error:
        yield _without_user(config, error)
    if user is not None:
        async for each in _waldur(config, context, client, user, sacct=sacct):
            yield each
    async for each in sources.slurm(config, context) if sacct else sources.store(config, context):
        yield each


def _without_user(config: WaldurConfig, error: WaldurError) -> Finding:
    if isinstance(error, AccessDenied):
        return fail("token", str(error))
    if isinstance(error, Unreachable | InvalidAnswer):
        return fail("url", f"{config.waldur_api_url}: {error}")
    return fail("url", f"{config.waldur_api_url} is perhaps not the address of an API: {error}")


async def _waldur(
    config: WaldurConfig, context: PluginContext, client: WaldurClient, user: User, *, sacct: bool
) -> AsyncIterator[Finding]:
    """Everything that needs a valid token."""
    yield ok("url", f"{config.waldur_api_url} answers")
    yield ok("token", f"of {user.username} ({user.full_name}){', staff' if user.is_staff else ''}")
    async for each in _server(context, client):
        yield each
    try:
        offering, resources, users = await client.offering(), await client.resources(), await client.offering_users()
    except WaldurError as error:
        yield fail("offering", f"{config.waldur_offering_uuid}: no such one, or the token has no role on it: {error}")
        return
    used, problem = await sources.used_by(config, context, sacct=sacct)
    if problem is not None:
        yield problem
    for each in (
        held_against.role(user, offering),
        held_against.state(offering),
        *held_against.components(config, offering),
        *held_against.accounts(config, resources, used),
        *held_against.logins(users, used),
    ):
        yield each


async def _server(context: PluginContext, client: WaldurClient) -> AsyncIterator[Finding]:
    try:
        version, ahead, bulk = await client.version(), await client.clock_ahead(context.now), await client.has_bulk()
    except WaldurError as error:
        yield note("server", f"does not say what it is: {error}")
        return
    takes = "many users in one request" if bulk else "one user at a time"
    yield ok("server", f"Waldur {version.version}, takes {takes}")
    yield held_against.clock(ahead)
