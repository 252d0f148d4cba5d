"""Declarations of hook modules: one frozen value per configurable kind.

A *kind* is a type that a hook module declares; an *instance* is a kind plus its section of the configuration. The
functions inside a declaration are called by the host, under a time limit and an error boundary of their own.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from auditord_hookspecs.access import AuthenticatorKind
from auditord_hookspecs.batches import Batch, Json, Produced
from auditord_hookspecs.checks import Check
from auditord_hookspecs.config import InstanceConfig
from auditord_hookspecs.contexts import CollectorContext, JobChoice, PluginContext, SenderContext
from auditord_hookspecs.entries import Entry
from auditord_hookspecs.proposals import Detect
from auditord_hookspecs.records import Record
from auditord_hookspecs.transforms import TransformKind

C = TypeVar("C", bound=InstanceConfig)


class Reach(msgspec.Struct, frozen=True):
    """The part of a source's past that an inventory can be held against the record store.

    Args:
        remembers: the source has forgotten jobs that ended before, such as sacct's purge; None: not known, then the
            earliest end that the inventory names counts.
        collects: the collector was never meant to read jobs that ended before (its first run, ``earliest_datetime``);
            None: all of them.
    """

    remembers: datetime | None = None
    collects: datetime | None = None


class CollectorKind(msgspec.Struct, Generic[C], frozen=True):
    """A kind of source that produces records.

    Args:
        name: what ``kind:`` says in the configuration.
        config: the model of an instance's section.
        collect: yields batches; called once per run. Each batch is durable before the next one is asked for.
        continuous: ``collect`` never ends by itself (a watch); if it does, that is a failure.
        interval: how often an instance runs that has neither ``interval`` nor ``schedule``.
        timeout: how long a run may take where the instance does not say.
        convert: turns a quarantined raw value into a record, on ``auditord quarantine retry``; None if the job makes no
            record under today's configuration. Raises :class:`InvalidRecord` with the remaining fault.
        import_config: turns one of AUDITOR's configuration files for this kind into ours, or None if it is not one.
        one_job: ``collect`` understands ``context.job``; requests for one job of other kinds are refused.
        job_of: the job of a quarantined raw value, or None if it names none: where ``convert`` fails on a retry, the
            source is asked for it again. Needs ``one_job``.
        jobs_at_once: how many jobs ``context.job`` may name, separated by commas.
        prefix: the record-id prefix of an instance; two instances with one prefix are refused.
        remarks: what an operator should know of a section that is valid but hardly meant, one sentence with the remedy
            each; shown by ``auditord config check``, ``status``, ``collect --dry-run`` and at the start.
        inventory: lists all jobs that ended within ``context.window``, for ``auditord audit``: batches as ``collect``
            makes them when that period is collected again, by the same rules. ``context.dry_run`` is True: nothing at
            the source may be changed. Jobs that make no record are counted in ``skipped``; ``checkpoint``, ``seen`` and
            ``pending`` are not looked at.
        reach: how far back that inventory can be compared; may look at ``context.checkpoint``.
        check: looks at what a section refers to, for ``auditord doctor``; see :mod:`auditord_hookspecs.checks`.
        detect: looks for this kind of source on the host, for ``auditord init``; see
            :mod:`auditord_hookspecs.proposals`.
        demo: options of an instance that replays recorded real output and so needs no source, for ``auditord demo``.
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
    inventory: Callable[[C, CollectorContext], AsyncIterator[Batch]] | None = None
    reach: Callable[[C, CollectorContext], Awaitable[Reach]] | None = None
    check: Check | None = None
    detect: Detect | None = None
    demo: Callable[[], Mapping[str, Any]] | None = None


class ImportedConfig(msgspec.Struct, frozen=True):
    """A file of AUDITOR, or of another program, in our words.

    Args:
        sections: what to put into the configuration, by dotted path (``collectors.slurm.interval``). A
            ``logging.level`` is not taken over, since it is that of the whole daemon: the command says so.
        comments: remarks by the same paths, for every value that means something else than it did.
        dropped: options that have no counterpart, with the reason.
        origin: the program whose file it is.
        notes: lines about the file as a whole.
    """

    sections: Mapping[str, Any]
    comments: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    dropped: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    origin: str = "AUDITOR"
    notes: Sequence[str] = ()


class PluginKind(msgspec.Struct, Generic[C], frozen=True):
    """A kind of consumer that turns records into an effect.

    Args:
        name: what ``kind:`` says in the configuration.
        config: the model of an instance's section.
        run: does the work once; honours ``context.dry_run`` for every effect.
        interval: how often an instance runs that has neither ``interval`` nor ``schedule``.
        timeout: how long a run may take where the instance does not say.
        import_config: turns one of AUDITOR's configuration files for this kind into ours, or None if it is not one.
        check: looks at what a section refers to, for ``auditord doctor``; see :mod:`auditord_hookspecs.checks`.
        detect: looks for the program that this kind replaces, for ``auditord init``; see
            :mod:`auditord_hookspecs.proposals`.
    """

    name: str
    config: type[C]
    run: Callable[[C, PluginContext], Awaitable[None]]
    interval: timedelta = timedelta(hours=1)
    timeout: timedelta = timedelta(hours=1)
    import_config: Callable[[Mapping[str, Any]], "ImportedConfig | None"] | None = None
    check: Check | None = None
    detect: Detect | None = None


class Sender(Protocol):
    """An open connection to a destination."""

    async def send(self, entries: Sequence[Entry]) -> None:
        """Deliver the entries in order. Entries that the destination already has count as delivered.

        Raises:
            RecordsRejected: some are refused for good; the others were delivered.
            Exception: anything else is a passing fault: the whole batch is sent again later.
        """
        ...


class SenderKind(msgspec.Struct, Generic[C], frozen=True):
    """A kind of destination of the send-queue.

    Args:
        name: what ``kind:`` says in the configuration.
        config: the model of an instance's section.
        open: opens the destination; entered once and again after each fault.
        batch_size: how many entries one ``send`` gets at most.
        check: looks at what a section refers to, for ``auditord doctor``; see :mod:`auditord_hookspecs.checks`.
    """

    name: str
    config: type[C]
    open: Callable[[C, SenderContext], AbstractAsyncContextManager[Sender]]
    batch_size: int = 1_000
    check: Check | None = None


AnyKind: TypeAlias = (
    CollectorKind[Any] | PluginKind[Any] | SenderKind[Any] | AuthenticatorKind[Any] | TransformKind[Any]
)
