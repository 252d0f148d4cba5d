"""The declaration of the kind ``utilisation``."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Final

from auditord_builtin.utilisation.config import Server, UtilisationConfig
from auditord_builtin.utilisation.importing import import_config
from auditord_builtin.utilisation.mail import greet
from auditord_builtin.utilisation.running import run_utilisation
from auditord_hookspecs import AuditordError, Context, PluginKind
from auditord_hookspecs.checks import Finding, Severity, check_certificate, check_folder, check_readable


async def check(config: UtilisationConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Look at the folder of the tables, the file with CO2 figures, and the mail server; no mail is sent."""
    if config.csv is not None:
        yield check_folder(config.csv.folder, "make the folder, and let this user write there")
    if config.energy.grid_intensity is not None:
        yield check_readable(config.energy.grid_intensity.file, "put the file there, and let this user read it")
    if config.mail is not None:
        server = config.mail.server
        if server.ca is not None:
            yield check_certificate(server.ca, context.now())
        yield await _check_mail(server)


async def _check_mail(server: Server) -> Finding:
    subject = f"{server.host}:{server.port_number}"
    try:
        await greet(server)
    except AuditordError as error:
        return Finding(Severity.FAILURE, subject, str(error), "compare mail.server with the mail server's options")
    login = ", and takes the login" if server.user else ""
    return Finding(Severity.OK, subject, f"the mail server answers{login}")


UTILISATION: Final = PluginKind(
    name="utilisation",
    config=UtilisationConfig,
    run=run_utilisation,
    interval=timedelta(hours=1),
    timeout=timedelta(hours=4),
    import_config=import_config,
    check=check,
)
