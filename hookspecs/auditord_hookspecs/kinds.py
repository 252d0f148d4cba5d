"""Declarations of hook modules: one frozen value per configurable kind.

A *kind* is a type that a hook module declares. An *instance* is a kind plus a section of the configuration. The host
calls the functions in a declaration later, each with its own time limit and error handling.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from auditord_hookspecs.access import AuthenticatorKind
from auditord_hookspecs.batches import Batch, Json, Produced
from auditord_hookspecs.checks import Check
from auditord_hookspecs.config import InstanceConfig
from auditord_hookspecs.contexts import CollectorContext, JobChoice, PluginContext, Sender, SenderContext
from auditord_hookspecs.proposals import Detect
from auditord_hookspecs.records import Record
from auditord_hookspecs.transforms import TransformKind

C = TypeVar("C", bound=InstanceConfig)


class Reach(msgspec.Struct, frozen=True):
    """The part of the past for which an inventory can be compared with the record store.

    Args:
        remembers: the source no longer knows jobs that ended before this instant (Slurm's purge, for example). None:
            unknown; the earliest end time in the inventory is used instead.
        collects: the collector was not meant to read jobs that ended before this instant (its first run, or
            ``earliest_datetime``). None: it was meant to read all jobs.
    """

    remembers: datetime | None = None
    collects: datetime | None = None


class CollectorKind(msgspec.Struct, Generic[C], frozen=True):
    """A kind of collector: a source of records.

    Args:
        name: the value of ``kind:`` in the configuration.
        config: the model of an instance's section.
        collect: yields batches; called once per run. Each batch is durable before the next one is requested.
        continuous: ``collect`` watches its source and never returns. If it returns, that counts as a failure.
        interval: the time between runs of an instance with neither ``interval`` nor ``schedule``.
        timeout: the time limit of a run, unless the instance sets its own.
        convert: converts a quarantined raw value to a record, for ``auditord quarantine retry``; returns None if the
            job makes no record under the current configuration. Raises :class:`InvalidRecord` if it is still faulty.
        import_config: converts one of AUDITOR's configuration files for this kind to ours; returns None for others.
        one_job: ``collect`` supports ``context.job``. Without it, requests for a single job are refused.
        job_of: returns the job that a quarantined raw value describes, or None if it names no job. If ``convert`` fails
            on a retry, the job is collected again from the source. Needs ``one_job``.
        jobs_at_once: the maximum number of jobs in ``context.job.job_id``, separated by commas.
        prefix: returns the record-id prefix of an instance. Two instances with one prefix are refused, unless one names
            the other in ``same_source_as``.
        remarks: returns warnings about a section that is valid but probably unintended, each in one sentence with the
            remedy. Shown by ``auditord config check``, ``doctor``, ``collect --dry-run`` and at start-up.
        provides: returns the names of all components that the records of an instance can have, such as ``Cores``. If
            no enabled collector provides what a report, plugin or pledge needs, ``auditord config check`` says so.
            None: unknown.
        labels: returns the names of all labels that the records of an instance can have, or None if they are unknown.
            If no enabled collector makes a label that a plugin needs, ``auditord config check`` says so.
        inventory: yields all jobs that ended within ``context.window``, for ``auditord audit``, in the same batches as
            if ``collect`` read that period again. ``context.dry_run`` is True: do not change anything at the source.
            Jobs that make no record are counted in ``skipped``. ``checkpoint``, ``seen`` and ``pending`` are ignored.
        no_inventory: returns why the source of an instance cannot be listed, with the remedy; None if it can. Such an
            instance is not audited.
        reach: returns how far back the inventory can be compared; may read ``context.checkpoint``.
        check: checks what a section refers to, for ``auditord doctor``; see :mod:`auditord_hookspecs.checks`.
        detect: looks for this kind of source on the host, for ``auditord init``; see
            :mod:`auditord_hookspecs.proposals`.
        demo: returns options of an instance that replays recorded output and so needs no source, for ``auditord demo``.
        delay: the name of the option that says how old a job or a file must be before it is collected, such as
            ``lag``. ``auditord collect`` mentions it if a run finds nothing.
    """

    name: str
    config: type[C]
    collect: Callable[[C, CollectorContext], AsyncIterator[Batch]]
    continuous: bool = False
    interval: timedelta = timedelta(minutes=5)
    timeout: timedelta = timedelta(hours=1)
    convert: Callable[[C, Json], Record | Produced | None] | None = None
    import_config: Callable[[Mapping[str, Any]], "ImportedConfig | None"] | None = None
    one_job: bool = False
    job_of: Callable[[Json], JobChoice | None] | None = None
    jobs_at_once: int = 1
    prefix: Callable[[C], str] | None = None
    remarks: Callable[[C], Iterable[str]] | None = None
    provides: Callable[[C], Iterable[str]] | None = None
    labels: Callable[[C], Iterable[str] | None] | None = None
    inventory: Callable[[C, CollectorContext], AsyncIterator[Batch]] | None = None
    no_inventory: Callable[[C], str | None] | None = None
    reach: Callable[[C, CollectorContext], Awaitable[Reach]] | None = None
    check: Check | None = None
    detect: Detect | None = None
    demo: Callable[[], Mapping[str, Any]] | None = None
    delay: str | None = None


class ImportedConfig(msgspec.Struct, frozen=True):
    """A configuration file of AUDITOR, or of another program, converted to ours.

    Args:
        sections: the values to set in the configuration, by dotted path (``collectors.slurm.interval``). A
            ``logging.level`` is dropped, since the level applies to the whole daemon; the command says so.
        comments: remarks by the same paths, for every value whose meaning has changed.
        dropped: options without a counterpart, with the reason.
        origin: the program whose file it is.
        notes: remarks about the file as a whole.
    """

    sections: Mapping[str, Any]
    comments: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    dropped: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    origin: str = "AUDITOR"
    notes: Sequence[str] = ()


class PluginKind(msgspec.Struct, Generic[C], frozen=True):
    """A kind of plugin: an action on records.

    Args:
        name: the value of ``kind:`` in the configuration.
        config: the model of an instance's section.
        run: does the work once. Every effect must honour ``context.dry_run``.
        interval: the time between runs of an instance with neither ``interval`` nor ``schedule``.
        timeout: the time limit of a run, unless the instance sets its own.
        import_config: converts a file of the program that this kind replaces to ours, or returns None for other files.
            Called with the file's document, and with those of the other files of this call.
        check: checks what a section refers to, for ``auditord doctor``; see :mod:`auditord_hookspecs.checks`.
        detect: looks for the program that this kind replaces, for ``auditord init``; see
            :mod:`auditord_hookspecs.proposals`.
        needs: returns the names of the components without which an instance's figures are missing or too low. For a
            held amount such as ``Cores``, its total will do.
        needs_labels: returns, for each label without which an instance's figures have no owner, the names under
            which a record may have it.
        remarks: as for :class:`CollectorKind`. Shown by ``auditord config check`` and ``doctor``, and at start-up.
        effect: returns what a run may do to the world, such as ``mails reports to 3 addresses``. ``auditord config
            diff`` and ``reload`` say it beside the time of the next run.
    """

    name: str
    config: type[C]
    run: Callable[[C, PluginContext], Awaitable[None]]
    interval: timedelta = timedelta(hours=1)
    timeout: timedelta = timedelta(hours=1)
    import_config: Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], "ImportedConfig | None"] | None = None
    check: Check | None = None
    detect: Detect | None = None
    needs: Callable[[C], Iterable[str]] | None = None
    needs_labels: Callable[[C], Iterable[Sequence[str]]] | None = None
    remarks: Callable[[C], Iterable[str]] | None = None
    effect: Callable[[C], str] | None = None


class SenderKind(msgspec.Struct, Generic[C], frozen=True):
    """A kind of sender: a destination of the send-queue.

    Args:
        name: the value of ``kind:`` in the configuration.
        config: the model of an instance's section.
        open: opens the destination; entered once, and again after each error.
        batch_size: the maximum number of entries in one ``send``.
        check: checks what a section refers to, for ``auditord doctor``; see :mod:`auditord_hookspecs.checks`.
    """

    name: str
    config: type[C]
    open: Callable[[C, SenderContext], AbstractAsyncContextManager[Sender]]
    batch_size: int = 1_000
    check: Check | None = None


AnyKind: TypeAlias = (
    CollectorKind[Any] | PluginKind[Any] | SenderKind[Any] | AuthenticatorKind[Any] | TransformKind[Any]
)
