"""The declaration of the kind ``waldur``."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Final

from auditord_builtin.waldur.client import open_client
from auditord_builtin.waldur.config import INTERVAL, WaldurConfig
from auditord_builtin.waldur.errors import WaldurError
from auditord_builtin.waldur.importing import detect, import_config
from auditord_builtin.waldur.reporting import report_usage
from auditord_hookspecs import Context, PluginKind
from auditord_hookspecs.checks import Finding, Severity

_PATIENCE: Final = timedelta(seconds=20)


async def check(config: WaldurConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """See if Waldur answers, takes the token, and has the offering; ``auditord waldur diagnose`` looks deeper."""
    impatient = config.model_copy(update={"retry_for": timedelta(0), "request_timeout": _PATIENCE})
    subject, remedy = "waldur", "compare waldur_api_url, ca_file and the token; auditord waldur diagnose says more"
    try:
        async with open_client(impatient, context.http) as client:
            user = await client.me()
            yield Finding(Severity.OK, subject, f"{config.waldur_api_url} takes the token of {user.username}")
            subject, remedy = "offering", "compare waldur_offering_uuid, and the roles of the token's user on it"
            offering = await client.offering()
    except WaldurError as error:
        yield Finding(Severity.FAILURE, subject, str(error), remedy)
        return
    names = ", ".join(component.type for component in offering.components)
    yield Finding(Severity.OK, subject, f"{offering.name} ({offering.state}) with the components {names or 'none'}")


WALDUR: Final = PluginKind(
    name="waldur",
    config=WaldurConfig,
    run=report_usage,
    interval=INTERVAL,
    import_config=import_config,
    detect=detect,
    check=check,
)
