"""The shapes of requests and responses of ``/api/v1``, from which ``/openapi.json`` is generated."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from auditord.spool import QuarantineEntry as StoredEntry
from auditord.web.problem_shapes import doc
from auditord_hookspecs import records
from auditord_hookspecs.records import Component
from auditord_hookspecs.wire import format_time

DOCUMENT_PATH: Final = "/openapi.json"
LABELS: Final = "x-labels"
"""The member of ``info`` in the document with the labels that the server calls site, group and user."""

Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""A time in UTC, with ``Z``."""


class StoredRecord(msgspec.Struct, frozen=True):
    """A record."""

    record_id: Annotated[str, doc("unique in the store.")]
    meta: Annotated[records.Meta | None, doc("lists of texts by key, or null where there are none.")]
    components: Annotated[tuple[Component, ...], doc("the resources that the job held.")]
    start_time: Annotated[Instant, doc("when it started.")]
    stop_time: Annotated[Instant | None, doc("the stop time, or null while it runs.")]
    runtime: Annotated[int | None, doc("whole seconds from start to stop, or null while it runs.")]


class RecordPage(msgspec.Struct, frozen=True):
    """A page of records."""

    records: Annotated[list[StoredRecord], doc("ordered by start time, then by id.")]
    next: Annotated[str | None, doc("the URL of the next page, or null on the last page.")]


class QuarantineEntry(msgspec.Struct, frozen=True):
    """A job, record, entry or body that could not be processed."""

    number: Annotated[int, doc("the entry's number, for commands and other calls.")]
    task: Annotated[str, doc("the collector; for an entry, the sender; for a body, ``api``.")]
    stage: Annotated[str, doc("the type of the entry: ``job``, ``record``, ``entry`` or ``body``.")]
    source_id: Annotated[str, doc("its id in the source.")]
    reason: Annotated[str, doc("the error.")]
    at: Annotated[Instant, doc("when it was last quarantined.")]
    occurrences: Annotated[int, doc("how many times it was quarantined.")]
    route: Annotated[str | None, doc("for a body: the path to which it was posted.")]


class QuarantinePage(msgspec.Struct, frozen=True):
    """A page of the quarantine, the oldest entries first."""

    entries: Annotated[list[QuarantineEntry], doc("without their raw input.")]
    next: Annotated[str | None, doc("the URL of the next page, or null on the last page.")]


class QuarantinedInput(QuarantineEntry, frozen=True):
    """An entry of the quarantine with its raw input and its sender."""

    raw: Annotated[Any, doc("JSON, or a text if it is not JSON.")]  # Any: any input of a source
    principal: Annotated[str | None, doc("the principal that sent it, if known.")]
    agent: Annotated[str | None, doc("the program that sent it, if known.")]


class Chosen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entries of the quarantine, by number."""

    ids: list[int]


class Retry(Chosen, frozen=True):
    """Entries to retry."""

    collector: Annotated[
        str | None, doc("the collector that converts jobs of a collector that is no longer configured.")
    ] = None


class Discarded(msgspec.Struct, frozen=True):
    """The number of deleted entries."""

    discarded: int


class Amounts(msgspec.Struct, frozen=True):
    """Sums over components."""

    amount: Annotated[int, doc("the sum of the amounts.")]
    amount_runtime: Annotated[int, doc("the sum of amount times runtime, in ticks.")]


class ScoreValueAmounts(msgspec.Struct, frozen=True):
    """Sums over the components with one value of a score."""

    value: Annotated[str, doc("the value of the score, in decimal.")]
    amount: Annotated[int, doc("the sum of the amounts.")]
    amount_runtime: Annotated[int, doc("the sum of amount times runtime, in ticks.")]


class ScoredAmounts(msgspec.Struct, frozen=True):
    """Sums of products with a score, exact."""

    amount: Annotated[str, doc("the sum of amount times score, in decimal; components without the score are left out.")]
    amount_runtime: Annotated[
        str, doc("the sum of amount times score times runtime in ticks, in decimal; likewise without those components.")
    ]
    unscored: Annotated[Amounts, doc("the sums over the components without the score.")]
    by_value: Annotated[list[ScoreValueAmounts], doc("the sums before the multiplication, by the value of the score.")]


class UsedComponent(msgspec.Struct, frozen=True):
    """The sums over the components of one name."""

    amount: Annotated[int, doc("the sum of the amounts.")]
    amount_runtime: Annotated[
        int, doc("the sum of amount times runtime, in ticks; CoreSeconds and the like count as part of Cores.")
    ]
    scores: Annotated[dict[str, ScoredAmounts], doc("by the name of each requested score.")]
    known: Annotated[bool, doc("false: no record of the group has the component, so its sums are unknown, not zero.")]


class GroupSums(msgspec.Struct, frozen=True):
    """The sums over one group of records."""

    key: Annotated[
        dict[str, str | int | bool | None],
        Meta(
            description="the value of each dimension, by its name in ``by``: a text, an amount, true or false, a "
            "score in decimal, the first day of a period, or null if the records have no such value."
        ),
    ]
    records: Annotated[int, doc("the number of records.")]
    runtime: Annotated[int, doc("the sum of the runtimes, in ticks.")]
    first_stop: Annotated[Instant, doc("the earliest stop among them.")]
    last_stop: Annotated[Instant, doc("the latest stop among them.")]
    usage: Annotated[dict[str, UsedComponent], doc("by the name of each requested component.")]


class SummedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of the lake, which later commits do not change."""

    id: Annotated[str, doc("the number of the Iceberg snapshot, for queries of other engines.")]
    committed_at: Annotated[Instant, doc("the time of the commit; later changes are not included.")]
    complete: Annotated[bool, doc("false during the first sync of a daemon: sums are too low.")]


class Sums(msgspec.Struct, frozen=True):
    """Sums over records. Integers have any size: a program that reads JSON numbers as floats loses digits."""

    ticks_per_second: Annotated[
        int, doc("the ticks per second of summed runtimes: 1 or, with ``from`` and ``to``, 1000000.")
    ]
    groups: Annotated[list[GroupSums], doc("ordered by key.")]
    snapshot: Annotated[SummedSnapshot | None, doc("the lake's snapshot; null for sums over the record store.")]


class Run(msgspec.Struct, frozen=True):
    """A run that has ended."""

    started: Annotated[Instant, doc("when it began.")]
    seconds: Annotated[float, doc("how long it took.")]
    error: Annotated[str | None, doc("the error, or null.")]
    records: Annotated[int, doc("the number of new records.")]
    quarantined: Annotated[int, doc("the number of quarantined jobs.")]
    skipped: Annotated[dict[str, int], doc("the number of jobs that make no record on purpose, by reason.")]


class HeldTurn(msgspec.Struct, frozen=True):
    """The lease of a plugin, which one process at a time holds."""

    host: Annotated[str, doc("the holder's host.")]
    process: Annotated[int, doc("the holder's process id.")]
    since: Annotated[Instant, doc("when the holder got the lease.")]
    expired: Annotated[bool, doc("whether the lease has expired, so that another daemon may take over.")]


class Instance(msgspec.Struct, frozen=True):
    """A collector, a plugin or a sender."""

    name: Annotated[str, doc("its name in the configuration.")]
    kind: Annotated[str, doc("its kind.")]
    section: Annotated[str, doc("``collectors``, ``plugins`` or ``senders``.")]
    enabled: Annotated[bool, doc("whether the instance is enabled; all other values of a disabled instance are empty.")]
    running: Annotated[bool, doc("whether the instance is running now; always true of a sender.")]
    next_run: Annotated[Instant | None, doc("the time of the next scheduled run.")]
    last_started: Annotated[Instant | None, doc("the start of the last run.")]
    last_success: Annotated[Instant | None, doc("the time of the last success.")]
    failures: Annotated[int, doc("the number of failures in a row.")]
    last_error: Annotated[str | None, doc("the last error, or null after success.")]
    last_runs: Annotated[list[Run], doc("the last finished runs, newest first.")]
    turn: Annotated[HeldTurn | None, doc("for a plugin: the current holder of its lease.")] = None
    remarks: Annotated[list[str], doc("what to look at although the last run succeeded.")] = []


class Instances(msgspec.Struct, frozen=True):
    """Every instance of the configuration."""

    instances: list[Instance]


class Part(msgspec.Struct, frozen=True):
    """The state of a database that the daemon must be able to write."""

    works: Annotated[bool, doc("whether the last attempt succeeded.")]
    error: Annotated[str | None, doc("the error, or null.")]


class Queue(msgspec.Struct, frozen=True):
    """The queue of a sender."""

    sender: Annotated[str, doc("the sender's name.")]
    entries: Annotated[int, doc("the number of waiting entries.")]
    oldest: Annotated[Instant | None, doc("when the oldest entry was received.")]
    attempts: Annotated[int, doc("the number of attempts to send the oldest entry.")]


class QuarantineCount(msgspec.Struct, frozen=True):
    """The entries of one source in quarantine."""

    task: str
    stage: str
    entries: int


class HealthReport(msgspec.Struct, frozen=True):
    """The health of the daemon."""

    status: Annotated[
        str,
        doc(
            "``ok``; ``degraded`` (something fails, but a post would be durable); ``failing`` (a post would not be "
            "durable)."
        ),
    ]
    version: Annotated[str, doc("the version of auditord.")]
    durable: Annotated[bool, doc("whether a post would be durable.")]
    store: Annotated[Part, doc("the record store.")]
    spool: Annotated[Part, doc("the spool, which holds the send-queue.")]
    records: Annotated[int | None, doc("the number of records; null if the store is unavailable.")]
    differences: Annotated[int | None, doc("the number of records that arrived again with different content.")]
    queues: Annotated[list[Queue], doc("the queues of the senders.")]
    quarantine: Annotated[list[QuarantineCount], doc("entries that could not be processed.")]
    gaps: Annotated[
        dict[str, Instant],
        doc("sites without a record for three of their usual intervals, with the end of their last record."),
    ]
    failing: Annotated[list[str], doc("the instances whose last run (for a sender: attempt) failed.")]
    refused_hosts: Annotated[
        list[str],
        doc("host names in requests that got 421, because they are missing in `api.hosts`; at most 100."),
    ] = []


class ReloadWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to reload the configuration files."""

    dry_run: Annotated[bool, doc("only compare the files, and change nothing.")] = False
    values: Annotated[
        dict[str, Any] | None,
        doc("with ``dry_run``, and only on the control socket: compare these merged values of other files."),
    ] = None


class OptionDifference(msgspec.Struct, frozen=True):
    """An option whose value in the files differs."""

    option: Annotated[str, doc("its dotted path.")]
    running: Annotated[Any, doc("the value in use; null if there is none, masked if it is secret.")]
    written: Annotated[Any, doc("the value in the files.")]


class NextRun(msgspec.Struct, frozen=True):
    """The next run of a collector or a plugin, once the daemon uses the files' values."""

    instance: Annotated[str, doc("its name, after that of its section.")]
    at: Annotated[str | None, doc("the time; null: at once.")]
    is_first: Annotated[bool, doc("whether the instance was not enabled before.")]
    effect: Annotated[str | None, doc("what the run may do to the world, if the kind says so.")]


class Reloaded(msgspec.Struct, frozen=True):
    """The differences between the daemon and its files."""

    applied: Annotated[bool, doc("whether the daemon now uses the files' values.")]
    differences: Annotated[Sequence[OptionDifference], doc("the options that differ.")]
    instances: Annotated[Sequence[str], doc("instances that can be reloaded, with their sections.")]
    restart: Annotated[Sequence[str], doc("options that need a restart; if there are any, nothing was changed.")]
    runs: Annotated[Sequence[NextRun], doc("the next runs of new and changed instances.")]
    files: Annotated[Sequence[str], doc("the files that the daemon reads.")]


def summary(entry: StoredEntry) -> QuarantineEntry:
    """Return an entry for a list."""
    return QuarantineEntry(
        number=entry.quarantine_id,
        task=entry.task,
        stage=entry.stage.value,
        source_id=entry.source_id,
        reason=entry.reason,
        at=format_time(entry.quarantined_at),
        occurrences=entry.occurrences,
        route=entry.route,
    )


def with_input(entry: StoredEntry) -> QuarantinedInput:
    """Return an entry with its raw input and origin."""
    provenance = entry.provenance
    return QuarantinedInput(
        **msgspec.structs.asdict(summary(entry)),
        raw=readable(entry.raw),
        principal=None if provenance is None else provenance.principal,
        agent=None if provenance is None else provenance.agent,
    )


def readable(raw: bytes) -> Any:  # Any: JSON
    """Return raw input as JSON, or as text if it is not JSON."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw.decode(errors="backslashreplace")
