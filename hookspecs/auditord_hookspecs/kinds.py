"""Declarations of hook modules: one frozen value per configurable kind.

A *kind* is a type that a hook module declares; an *instance* is a kind plus its section of the configuration. The
functions inside a declaration are called by the host, under a time limit and an error boundary of their own.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from auditord_hookspecs.access import AuthenticatorKind
from auditord_hookspecs.checks import Check
from auditord_hookspecs.config import InstanceConfig
from auditord_hookspecs.contexts import CollectorContext, JobChoice, PluginContext, SenderContext
from auditord_hookspecs.entries import Entry
from auditord_hookspecs.proposals import Detect
from auditord_hookspecs.records import Record
from auditord_hookspecs.transforms import TransformKind

C = TypeVar("C", bound=InstanceConfig)

Json: TypeAlias = Any  # Any: any JSON value; a recursive alias costs every caller a cast


@dataclass(frozen=True, slots=True)
class Produced:
    """A record on its way into the spool.

    Args:
        record: what happened.
        alternate_id: the id to use instead when the plain one already belongs to another run (another start time).
        replaces: the source has changed its account of this run: the record that is stored under either id is
            overwritten (and kept as a former version).
        source_id: what the batch system calls the job, as in :class:`Quarantined`: an entry of it in quarantine is
            settled by this record.

    Example::

        Produced(record, alternate_id=f"{record.record_id}-1767254400", source_id="17")
    """

    record: Record
    alternate_id: str | None = None
    replaces: bool = False
    source_id: str | None = None


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A job that could not be converted; kept with its raw input until it is retried or discarded.

    Args:
        source_id: what the batch system calls the job; one entry per instance and source id is kept, the newest.
        raw: the input, as JSON; given back to the kind's ``convert`` on retry.
        reason: the fault and its remedy, for the operator.

    Example::

        Quarantined("17", "17 alice yesterday 8", "'yesterday' is no time: mend it, then retry")
    """

    source_id: str
    raw: Json
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A component or label that a record lacks because its text could not be read or believed.

    Args:
        name: of the component, or of the rule for the label.
        reason: the fault, and where that text stood.
        label: whether it is a label.
        record_id: of the record.

    Example::

        LeftOut("MaxRSS", "component MaxRSS: rss: 'lots' is not a size such as 2000M or 1.5G", record_id="pbs-17")
    """

    name: str
    reason: str
    label: bool = False
    record_id: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """The unit of atomicity: all of it reaches the spool in one transaction, or nothing.

    Args:
        records: new records; a plain :class:`Record` where there is no alternate id.
        quarantined: jobs that could not be converted.
        skipped: how many jobs made no record on purpose, by reason.
        checkpoint: how far the source has been read, as JSON; None leaves the stored checkpoint unchanged.
        seen: keys to remember until the given instant (see ``CollectorContext.seen``).
        pending: values by key, kept between runs (see ``CollectorContext.pending``); None forgets a key.
        left_out: optional components and labels that records lack; the host counts them, and logs each name once per
            run.

    Example::

        Batch(
            records=[record],
            skipped={"never started": 3},
            checkpoint={"read_until": "2026-01-01T09:00:00+00:00"},
            seen={"17": context.now() + timedelta(days=7)},
            pending={"18": {"started": "2026-01-01T08:30:00+00:00"}, "17": None},
        )
    """

    records: Sequence[Record | Produced] = ()
    quarantined: Sequence[Quarantined] = ()
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])
    checkpoint: Json | None = None
    seen: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    pending: Mapping[str, Json | None] = field(default_factory=dict[str, Json | None])
    left_out: Sequence[LeftOut] = ()


@dataclass(frozen=True, slots=True)
class Reach:
    """The part of a source's past that an inventory can be held against the record store.

    Args:
        remembers: the source has forgotten jobs that ended before, such as sacct's purge; None: not known, then the
            earliest end that the inventory names counts.
        collects: the collector was never meant to read jobs that ended before (its first run, ``earliest_datetime``);
            None: all of them.
    """

    remembers: datetime | None = None
    collects: datetime | None = None


@dataclass(frozen=True)  # no slots: CollectorKind[Config](…) would raise TypeError
class CollectorKind(Generic[C]):
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


@dataclass(frozen=True, slots=True)
class ImportedConfig:
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
    comments: Mapping[str, str] = field(default_factory=dict[str, str])
    dropped: Mapping[str, str] = field(default_factory=dict[str, str])
    origin: str = "AUDITOR"
    notes: Sequence[str] = ()


@dataclass(frozen=True)  # no slots: PluginKind[Config](…) would raise TypeError
class PluginKind(Generic[C]):
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


@dataclass(frozen=True)  # no slots: SenderKind[Config](…) would raise TypeError
class SenderKind(Generic[C]):
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


@dataclass(frozen=True, slots=True)
class RunReport:
    """The result of one run of an instance.

    Args:
        task: the instance's name.
        kind: the instance's kind.
        started: when the run began (aware).
        duration: how long it took.
        error: None after success, else what happened, in one line.
        records: how many records reached the spool for the first time in this run.
        quarantined: how many jobs went to quarantine.
        skipped: how many jobs made no record on purpose, by reason.
    """

    task: str
    kind: str
    started: datetime
    duration: timedelta
    error: str | None = None
    records: int = 0
    quarantined: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])


AnyKind: TypeAlias = (
    CollectorKind[Any] | PluginKind[Any] | SenderKind[Any] | AuthenticatorKind[Any] | TransformKind[Any]
)
