"""Run all checks of ``auditord doctor``, each with its own error handling and time limit."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Final

import anyio
import msgspec

from auditord.checks import check_pair, check_tokens
from auditord.config.files import tls_files
from auditord.config.model import Configuration, kind_of
from auditord.contexts.instances import InstanceContext, environment_of
from auditord.features import features_of
from auditord.hooks import Hooks
from auditord.web.access.authorisation import HostAuthenticatorContext
from auditord_hookspecs import AuditordError, Context, InstanceConfig
from auditord_hookspecs.checks import Check, Finding, Severity

LONGEST: Final = 120.0
"""Seconds that the checks of one place may take."""


class Examined(msgspec.Struct, frozen=True):
    """A finding with its place in the configuration; also one object of ``auditord doctor --output json``."""

    where: str
    severity: str
    subject: str
    text: str
    remedy: str


async def examine(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime], refused_hosts: Collection[str] = ()
) -> list[Examined]:
    """Look at everything, places side by side; the findings come in the order of the places.

    Args:
        configuration: of the daemon, whether it runs or not.
        hooks: bring checks of their own.
        now: the clock.
        refused_hosts: names for which the running daemon has refused requests.
    """
    declared = features_of(hooks).declarations(
        "feature_checks", configuration=configuration, hooks=hooks, now=now, refused_hosts=refused_hosts
    )
    places = dict[str, AsyncIterator[Finding]](check for _, check in declared)
    places.update(_instance_checks(configuration, hooks, now))
    found: dict[str, list[Finding]] = {}

    async def look(where: str, check: AsyncIterator[Finding]) -> None:
        found[where] = await _findings(check)

    async with anyio.create_task_group() as group:
        for where, check in places.items():
            group.start_soon(look, where, check)
    return [
        Examined(where, each.severity.value, each.subject, each.text, each.remedy)
        for where in places
        for each in found[where]
    ]


async def _findings(check: AsyncIterator[Finding]) -> list[Finding]:
    """Return the findings of a check; an exception becomes a finding."""
    found: list[Finding] = []
    try:
        with anyio.fail_after(LONGEST):
            async for finding in check:
                found.append(finding)  # noqa: PERF401 earlier findings stay if the next one raises
    except TimeoutError:
        text = f"not finished after {LONGEST:g} s"
        found.append(Finding(Severity.FAILURE, "check", text, "find out why it is slow"))
    except AuditordError as error:
        found.append(Finding(Severity.FAILURE, "check", str(error), "see the message"))
    except Exception as error:  # noqa: BLE001 the boundary: a third party's check must not hide the others
        text = f"{type(error).__name__}: {error}"
        found.append(Finding(Severity.FAILURE, "check", text, "report this to the authors of the kind"))
    return found


def _instance_checks(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime]
) -> Mapping[str, AsyncIterator[Finding]]:
    """Return the checks of each enabled instance, by its place."""
    found: dict[str, AsyncIterator[Finding]] = {}
    for section, kinds in hooks.kinds.sections().items():
        for name, config in getattr(configuration, section).items():
            if config.enabled:
                kind: Any = kinds[kind_of(config)]  # Any: some declarations have a check
                context = (
                    HostAuthenticatorContext(name, kind.name, now, configuration.state_dir)
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
