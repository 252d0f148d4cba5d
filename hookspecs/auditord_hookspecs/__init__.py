"""All that an author of collectors, plugins and senders for auditord may import.

A hook module declares kinds and listens to events (:mod:`auditord_hookspecs.hookspec`); one line in its distribution's
metadata makes the daemon load it::

    [project.entry-points."auditord.hooks"]
    printers = "auditord_printers"
"""

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
    Group,
    MetaValue,
    ScoreSums,
    ScoreValue,
    UsageSums,
)
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
    RecordSink,
    Redactor,
    SenderContext,
)
from auditord_hookspecs.contract import CONTRACT, Contract
from auditord_hookspecs.deferred import Deferred
from auditord_hookspecs.entries import Close, Entry, Insert, Provenance, Replace
from auditord_hookspecs.errors import AuditordError, CommandFailed, InvalidRecord, RecordsRejected
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
from auditord_hookspecs.kinds import (
    Batch,
    CollectorKind,
    ImportedConfig,
    PluginKind,
    Produced,
    Quarantined,
    Reach,
    RunReport,
    Sender,
    SenderKind,
)
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
    "Certificate",
    "CertificateUntrusted",
    "Close",
    "CollectorContext",
    "CollectorKind",
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
    "Group",
    "HttpAnswer",
    "HttpClient",
    "HttpError",
    "HttpOptions",
    "HttpStatusError",
    "HttpStream",
    "Identity",
    "ImportedConfig",
    "Insert",
    "InstanceConfig",
    "InvalidHttpAnswer",
    "InvalidRecord",
    "JobChoice",
    "MetaValue",
    "NoHttpAnswer",
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
    "RecordSink",
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
    "Transform",
    "TransformKind",
    "UnixPeer",
    "UsageSums",
    "Window",
    "hookimpl",
    "pass_context",
]
