"""The declaration of the kind ``apel``."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Final

from auditord_builtin.apel.broker import BrokerUnavailable, open_broker
from auditord_builtin.apel.certificate import CertificateUnusable, load_credentials
from auditord_builtin.apel.client_files import detect, import_client_file
from auditord_builtin.apel.config import ApelConfig, MessagingConfig
from auditord_builtin.apel.importing import import_config
from auditord_builtin.apel.publishing import run_apel
from auditord_builtin.apel.sending import broker_of
from auditord_hookspecs import AuditordError, Context, ImportedConfig, PluginKind
from auditord_hookspecs.checks import Finding, Severity, check_certificate
from auditord_hookspecs.config_import import Document

INTERVAL: Final = timedelta(hours=6)
"""A report a day is enough; a run that met a broker that was away is made up for sooner."""


async def check(config: ApelConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Look at the certificate that signs messages and its key, and have the broker give a token for it."""
    messaging = config.messaging
    yield check_certificate(messaging.client_cert, context.now())
    try:
        load_credentials(messaging.client_cert, messaging.client_key)
    except CertificateUnusable as error:
        yield Finding(Severity.FAILURE, "credentials", str(error), "see the message")
        return
    yield await _check_broker(messaging, context)


async def _check_broker(messaging: MessagingConfig, context: Context) -> Finding:
    try:
        async with open_broker(replace(broker_of(messaging), retry_waits=()), context.http) as broker:
            await broker.authenticate()
    except BrokerUnavailable as error:
        remedy = "is messaging.host right, and may this host connect to it? what is due is sent later"
        return Finding(Severity.FAILURE, "broker", str(error), remedy)
    except AuditordError as error:
        remedy = "is the certificate's subject the Host DN of the site's gLite-APEL service in GOCDB?"
        return Finding(Severity.FAILURE, "broker", str(error), remedy)
    return Finding(Severity.OK, "broker", f"{messaging.host} knows our certificate")


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
