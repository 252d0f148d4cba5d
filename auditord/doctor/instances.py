"""The checks that kinds bring, and the certificates that any section names."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any

from auditord.config.certificates import tls_files
from auditord.config.model import Configuration, kind_of
from auditord.contexts.instances import InstanceContext, environment_of
from auditord.hooks import Hooks
from auditord_hookspecs import Context, InstanceConfig
from auditord_hookspecs.checks import Check, Finding, check_certificate, check_readable


def instance_checks(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime]
) -> Mapping[str, AsyncIterator[Finding]]:
    """The checks of each enabled instance, by its place."""
    found: dict[str, AsyncIterator[Finding]] = {}
    for section, kinds in hooks.kinds.sections().items():
        for name, config in getattr(configuration, section).items():
            if config.enabled:
                kind: Any = kinds[kind_of(config)]  # Any: some declarations have a check
                context = InstanceContext(name, kind.name, now, environment_of(config))
                found[f"{section}.{name}"] = _check(getattr(kind, "check", None), config, context)
    return found


async def _check(check: Check | None, config: InstanceConfig, context: Context) -> AsyncGenerator[Finding, None]:
    for tls in tls_files(config):
        for file in filter(None, (tls.ca, tls.certificate)):
            yield check_certificate(file, context.now())
        if tls.key is not None:
            yield check_readable(tls.key, "let this user read it, and nobody else")
    if check is not None:
        async for finding in check(config, context):
            yield finding
