"""Reports usage to EGI's accounting, APEL.

From a tick to a message, file by file:

1. :mod:`publishing` runs: site by site, month by month (or day by day), keeping one fault from another.
2. :mod:`summary_reporting` or :mod:`job_reporting` say what is due (:mod:`reporting` is what both share), by comparing
   the store with the saved :mod:`state`.
3. :mod:`questions` asks the store and reads configured :mod:`fields` in its answer; :mod:`summaries` and
   :mod:`accelerators` add up :mod:`rows`, :mod:`jobs` makes a row of each record.
4. :mod:`messages` writes rows as text (:mod:`text` has the rules of values), :mod:`validation` finds what APEL would
   refuse by its :mod:`rules`.
5. :mod:`sending` signs with the host's :mod:`certificate` and publishes through the :mod:`broker`.

Beside them: :mod:`config`, :mod:`importing` and :mod:`client_files`, :mod:`months`, :mod:`infrastructure`,
:mod:`metrics`, and :mod:`commands` with :mod:`showing`.
"""

from collections.abc import AsyncGenerator, Iterable
from datetime import timedelta
from typing import Final

import click
from prometheus_client.registry import Collector

from auditord_builtin.apel.certificate import CertificateUnusable, load_credentials
from auditord_builtin.apel.client_files import detect, import_client_file
from auditord_builtin.apel.commands import KIND, apel_command
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.importing import import_config
from auditord_builtin.apel.metrics import INSTRUMENTS
from auditord_builtin.apel.publishing import run_apel
from auditord_hookspecs import Context, Daemon, ImportedConfig, PluginKind, hookimpl
from auditord_hookspecs.checks import Finding, Severity, check_certificate
from auditord_hookspecs.config_import import Document

__all__ = ["APEL", "ApelConfig", "auditord_commands", "auditord_metrics", "auditord_plugins"]

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
    name=KIND,
    config=ApelConfig,
    run=run_apel,
    interval=INTERVAL,
    import_config=import_file,
    check=check,
    detect=detect,
)


@hookimpl
def auditord_plugins() -> Iterable[PluginKind[ApelConfig]]:
    """Declare the kind ``apel``."""
    yield APEL


@hookimpl
def auditord_commands() -> Iterable[click.Command]:
    """Declare ``auditord apel``."""
    yield apel_command


@hookimpl
def auditord_metrics(daemon: Daemon) -> Iterable[Collector]:
    """Declare the metrics."""
    del daemon
    return INSTRUMENTS
