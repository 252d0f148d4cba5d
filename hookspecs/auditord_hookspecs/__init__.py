"""The contract: everything that authors of collectors, plugins and senders for auditord may import.

A hook module declares kinds and handles events (:mod:`auditord_hookspecs.hookspec`). The daemon loads it because its
distribution has an entry point::

    [project.entry-points."auditord.hooks"]
    printers = "auditord_printers"

Names are imported on first use, so that a command imports only the part of the contract that it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from auditord_hookspecs.access import (
        AccessRefused,
        Authenticate,
        AuthenticatorContext,
        AuthenticatorKind,
        Certificate,
        Credentials,
        Identity,
        UnixPeer,
    )
    from auditord_hookspecs.aggregates import (
        AggregateQuery,
        Aggregates,
        AmountSums,
        CalendarPeriod,
        CalendarUnit,
        ComponentAmount,
        ComponentPresent,
        ComponentUsage,
        Dimension,
        ExceedsRuntime,
        Group,
        MetaValue,
        ScoreSums,
        ScoreValue,
        UsageSums,
    )
    from auditord_hookspecs.batches import Batch, LeftOut, Produced, Quarantined, RunReport
    from auditord_hookspecs.commands import CommandContext, pass_context
    from auditord_hookspecs.config import Duration, InstanceConfig, RunConfig, Secret, Section
    from auditord_hookspecs.contexts import (
        Backups,
        CollectorContext,
        CommandOutput,
        CommandResult,
        Context,
        Daemon,
        JobChoice,
        PluginContext,
        Records,
        Redactor,
        Sender,
        SenderContext,
    )
    from auditord_hookspecs.contract import CONTRACT, Contract
    from auditord_hookspecs.deferred import Deferred
    from auditord_hookspecs.entries import Close, Entry, Insert, Provenance, Replace
    from auditord_hookspecs.errors import AuditordError, CommandFailed, InvalidRecord, RecordsRejected, TooManyGroups
    from auditord_hookspecs.hookspec import hookimpl
    from auditord_hookspecs.http import (
        CertificateUntrusted,
        HttpAnswer,
        HttpClient,
        HttpError,
        HttpOptions,
        HttpStatusError,
        HttpStream,
        InvalidHttpAnswer,
        NoHttpAnswer,
    )
    from auditord_hookspecs.importers import Importer, ImporterKind, ImportPage, ImportRow
    from auditord_hookspecs.kinds import CollectorKind, ImportedConfig, PluginKind, Reach, SenderKind
    from auditord_hookspecs.panels import CellValue, Chart, Column, Panel, PanelContext, PanelPart, Series, Table
    from auditord_hookspecs.query import RecordQuery, Window
    from auditord_hookspecs.records import Component, Record, RecordUpdate, Score
    from auditord_hookspecs.roles import Permission, Principal, Role
    from auditord_hookspecs.sources import PluginConfig
    from auditord_hookspecs.transforms import Transform, TransformKind

__all__ = [
    "CONTRACT",
    "AccessRefused",
    "AggregateQuery",
    "Aggregates",
    "AmountSums",
    "AuditordError",
    "Authenticate",
    "AuthenticatorContext",
    "AuthenticatorKind",
    "Backups",
    "Batch",
    "CalendarPeriod",
    "CalendarUnit",
    "CellValue",
    "Certificate",
    "CertificateUntrusted",
    "Chart",
    "Close",
    "CollectorContext",
    "CollectorKind",
    "Column",
    "CommandContext",
    "CommandFailed",
    "CommandOutput",
    "CommandResult",
    "Component",
    "ComponentAmount",
    "ComponentPresent",
    "ComponentUsage",
    "Context",
    "Contract",
    "Credentials",
    "Daemon",
    "Deferred",
    "Dimension",
    "Duration",
    "Entry",
    "ExceedsRuntime",
    "Group",
    "HttpAnswer",
    "HttpClient",
    "HttpError",
    "HttpOptions",
    "HttpStatusError",
    "HttpStream",
    "Identity",
    "ImportPage",
    "ImportRow",
    "ImportedConfig",
    "Importer",
    "ImporterKind",
    "Insert",
    "InstanceConfig",
    "InvalidHttpAnswer",
    "InvalidRecord",
    "JobChoice",
    "LeftOut",
    "MetaValue",
    "NoHttpAnswer",
    "Panel",
    "PanelContext",
    "PanelPart",
    "Permission",
    "PluginConfig",
    "PluginContext",
    "PluginKind",
    "Principal",
    "Produced",
    "Provenance",
    "Quarantined",
    "Reach",
    "Record",
    "RecordQuery",
    "RecordUpdate",
    "Records",
    "RecordsRejected",
    "Redactor",
    "Replace",
    "Role",
    "RunConfig",
    "RunReport",
    "Score",
    "ScoreSums",
    "ScoreValue",
    "Secret",
    "Section",
    "Sender",
    "SenderContext",
    "SenderKind",
    "Series",
    "Table",
    "TooManyGroups",
    "Transform",
    "TransformKind",
    "UnixPeer",
    "UsageSums",
    "Window",
    "hookimpl",
    "pass_context",
]

_MODULES: Final = {
    "access": """
        AccessRefused Authenticate AuthenticatorContext AuthenticatorKind Certificate Credentials Identity
        UnixPeer
    """,
    "aggregates": """
        AggregateQuery Aggregates AmountSums CalendarPeriod CalendarUnit ComponentAmount ComponentPresent
        ComponentUsage Dimension ExceedsRuntime Group MetaValue ScoreSums ScoreValue UsageSums
    """,
    "batches": "Batch LeftOut Produced Quarantined RunReport",
    "commands": "CommandContext pass_context",
    "config": "Duration InstanceConfig RunConfig Secret Section",
    "contexts": """
        Backups CollectorContext CommandOutput CommandResult Context Daemon JobChoice PluginContext Records
        Redactor Sender SenderContext
    """,
    "contract": "CONTRACT Contract",
    "deferred": "Deferred",
    "entries": "Close Entry Insert Provenance Replace",
    "errors": "AuditordError CommandFailed InvalidRecord RecordsRejected TooManyGroups",
    "hookspec": "hookimpl",
    "http": """
        CertificateUntrusted HttpAnswer HttpClient HttpError HttpOptions HttpStatusError HttpStream
        InvalidHttpAnswer NoHttpAnswer
    """,
    "importers": "ImportPage ImportRow Importer ImporterKind",
    "kinds": "CollectorKind ImportedConfig PluginKind Reach SenderKind",
    "panels": "CellValue Chart Column Panel PanelContext PanelPart Series Table",
    "query": "RecordQuery Window",
    "records": "Component Record RecordUpdate Score",
    "roles": "Permission Principal Role",
    "sources": "PluginConfig",
    "transforms": "Transform TransformKind",
}
"""The names that each module exports."""

_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a name of the contract on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
