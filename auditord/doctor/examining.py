"""Run all checks of ``auditord doctor``, each with its own error handling and time limit."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from datetime import datetime
from typing import Final

import anyio
import msgspec

from auditord.config.model import Configuration
from auditord.doctor.daemon import check_runs
from auditord.doctor.host import check_addresses, check_disk, check_names, check_state_folder
from auditord.doctor.instances import instance_checks
from auditord.doctor.lake import check_lake
from auditord.doctor.records import check_records
from auditord.doctor.replica import check_replica
from auditord.hooks import Hooks
from auditord_hookspecs import AuditordError
from auditord_hookspecs.checks import Finding, Severity

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
    places: Mapping[str, AsyncIterator[Finding]] = {
        "state_dir": check_state_folder(configuration.state_dir),
        "disk": check_disk(configuration, now),
        "daemon": check_runs(configuration, hooks, now),
        "api.listen": check_addresses(configuration, now),
        "api.hosts": check_names(configuration.api, refused_hosts),
        "store": check_records(configuration, now),
        "store.replica": check_replica(configuration.store),
        "lake": check_lake(configuration, now),
        **instance_checks(configuration, hooks, now),
    }
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
