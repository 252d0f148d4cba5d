"""The list of what answers requests of programs: routes, descriptions and the manual's page are made from it.

A class of handlers is added to one of the types below, and its object where values of that type are made. The type
checker compares both.
"""

from typing import Final, TypeAlias, get_args

from auditord.actions import Actions
from auditord.web.api.adding import AddHandler
from auditord.web.api.operating import ChangeHandlers, ConfigurationHandlers, QuarantineHandlers, Reload
from auditord.web.api.records import RecordHandlers
from auditord.web.api.runs import RunHandler
from auditord.web.api.status import SiteReportHandlers, StatusHandlers
from auditord.web.api.sums import SumsHandler
from auditord.web.metrics import MonitoringHandlers
from auditord.web.wire import ReadHandlers, WriteHandlers

WireHandlers: TypeAlias = tuple[WriteHandlers, ReadHandlers, MonitoringHandlers]
"""AUDITOR's routes, at the root."""

DataHandlers: TypeAlias = tuple[RecordHandlers, AddHandler, SumsHandler]
"""The API's calls about records, which every server has."""

DaemonHandlers: TypeAlias = tuple[
    ConfigurationHandlers, StatusHandlers, RunHandler, QuarantineHandlers, ChangeHandlers, SiteReportHandlers
]
"""The API's calls about the daemon, and those that change single records."""

WIRE: Final[tuple[type, ...]] = get_args(WireHandlers)
API: Final[tuple[type, ...]] = (*get_args(DataHandlers), *get_args(DaemonHandlers))


def make_daemon_handlers(
    actions: Actions, status: StatusHandlers, site_reports: SiteReportHandlers, reload: Reload | None
) -> DaemonHandlers:
    """Return the handlers of a daemon; ``reload`` is None if it was started without files."""
    return (
        ConfigurationHandlers(reload),
        status,
        RunHandler(actions),
        QuarantineHandlers(status.spool, actions),
        ChangeHandlers(actions.records, status.ingest.store),
        site_reports,
    )
