"""The declaration of the kind ``apel``."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Final

from auditord_builtin.apel.certificate import CertificateUnusable, load_credentials
from auditord_builtin.apel.client_files import detect, import_client_file
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.importing import import_config
from auditord_builtin.apel.publishing import run_apel
from auditord_hookspecs import Context, ImportedConfig, PluginKind
from auditord_hookspecs.checks import Finding, Severity, check_certificate
from auditord_hookspecs.config_import import Document

INTERVAL: Final = timedelta(hours=6)
"""A report a day is enough; a run that met a broker that was away is made up for sooner."""


async def check(config: ApelConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Look at the certificate that signs messages, and its key."""
    yield check_certificate(config.messaging.client_cert, context.now())
    try:
        load_credentials(config.messaging.client_cert, config.messaging.client_key)
    except CertificateUnusable as error:
        yield Finding(Severity.FAILURE, "credentials", str(error), "see the message")


def import_file(document: Document) -> ImportedConfig | None:
    """Translate a file of AUDITOR's plugin, or of an APEL client."""
    return import_client_file(document) or import_config(document)


APEL = PluginKind(
    name="apel",
    config=ApelConfig,
    run=run_apel,
    interval=INTERVAL,
    import_config=import_file,
    check=check,
    detect=detect,
)
