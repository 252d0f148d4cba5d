"""Run the checks of kinds, and check the certificates in all sections."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from auditord.config.files import tls_files
from auditord.config.model import Configuration, kind_of
from auditord.contexts.instances import InstanceContext, environment_of
from auditord.doctor.tokens import check_tokens
from auditord.hooks import Hooks
from auditord.web.access.authorisation import HostAuthenticatorContext
from auditord_hookspecs import Context, InstanceConfig
from auditord_hookspecs.checks import Check, Finding, Severity, check_certificate, check_readable


def instance_checks(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime]
) -> Mapping[str, AsyncIterator[Finding]]:
    """Return the checks of each enabled instance, by its place."""
    found: dict[str, AsyncIterator[Finding]] = {}
    for section, kinds in hooks.kinds.sections().items():
        for name, config in getattr(configuration, section).items():
            if config.enabled:
                kind: Any = kinds[kind_of(config)]  # Any: some declarations have a check
                context = (
                    HostAuthenticatorContext(name, kind.name, now, state_dir=configuration.state_dir)
                    if section == "authenticators"
                    else InstanceContext(name, kind.name, now, environment_of(config))
                )
                found[f"{section}.{name}"] = _check(getattr(kind, "check", None), config, context)
    return found


async def _check(check: Check | None, config: InstanceConfig, context: Context) -> AsyncGenerator[Finding, None]:
    for tls in tls_files(config):
        for finding in check_pair(tls.ca, tls.certificate, tls.key, context.now()):
            yield finding
    for finding in check_tokens(config, context.now()):
        yield finding
    if check is not None:
        async for finding in check(config, context):
            yield finding


def check_pair(ca: Path | None, certificate: Path | None, key: Path | None, now: datetime) -> Iterator[Finding]:
    """Look at the dates of certificates, and at the key of ours, which may be in the same file."""
    for file in filter(None, (ca, certificate)):
        yield check_certificate(file, now)
    if key is not None:
        readable = check_readable(key, "let only this user read it")
        yield readable
        if certificate is not None and readable.severity is Severity.OK:
            yield _match(certificate, key)


def _match(certificate: Path, key: Path) -> Finding:
    try:
        # A password is never asked for on a terminal: an encrypted key is a failure, as for those who use it.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password=lambda: b"")
    except (ssl.SSLError, OSError, ValueError) as error:
        text = f"{key} is not the key of {certificate}: {error}"
        return Finding(Severity.FAILURE, "key", text, "use the key that belongs to the certificate")
    return Finding(Severity.OK, "key", f"{key} is the key of {certificate}")
