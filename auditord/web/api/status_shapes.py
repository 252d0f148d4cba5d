"""The shapes of questions and answers about the daemon: its instances, its health, its configuration."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from auditord.web.api.shapes import Instant
from auditord.web.problem_shapes import doc


class Run(msgspec.Struct, frozen=True):
    """A run that has ended."""

    started: Annotated[Instant, doc("when it began.")]
    seconds: Annotated[float, doc("how long it took.")]
    error: Annotated[str | None, doc("what went wrong, or null.")]
    records: Annotated[int, doc("how many new records it made.")]
    quarantined: Annotated[int, doc("how many jobs it put into quarantine.")]
    skipped: Annotated[dict[str, int], doc("how many jobs made no record on purpose, by reason.")]


class HeldTurn(msgspec.Struct, frozen=True):
    """The turn of a plugin, which one process at a time has."""

    host: Annotated[str, doc("of the holder.")]
    process: Annotated[int, doc("its process id there.")]
    since: Annotated[Instant, doc("when it got the turn.")]
    expired: Annotated[bool, doc("whether it has not renewed its lease in time, so that any other may take over.")]


class Instance(msgspec.Struct, frozen=True):
    """A collector, a plugin or a sender."""

    name: Annotated[str, doc("in the configuration.")]
    kind: Annotated[str, doc("what it is.")]
    section: Annotated[str, doc("``collectors``, ``plugins`` or ``senders``.")]
    enabled: Annotated[bool, doc("whether it takes part; of one that does not, nothing else is known.")]
    running: Annotated[bool, doc("whether a run is going on; of a sender, always.")]
    next_run: Annotated[Instant | None, doc("when the clock asks for the next run.")]
    last_started: Annotated[Instant | None, doc("when the last run began.")]
    last_success: Annotated[Instant | None, doc("when something last went well.")]
    failures: Annotated[int, doc("failures in a row.")]
    last_error: Annotated[str | None, doc("what went wrong at last, or null if it went well.")]
    last_runs: Annotated[list[Run], doc("the last runs that ended, the newest first.")]
    turn: Annotated[
        HeldTurn | None, doc("of a plugin: who runs it at the moment, where daemons of several hosts may.")
    ] = None


class Instances(msgspec.Struct, frozen=True):
    """Every instance of the configuration."""

    instances: list[Instance]


class Part(msgspec.Struct, frozen=True):
    """A part that must be able to write."""

    works: Annotated[bool, doc("whether it could a moment ago.")]
    error: Annotated[str | None, doc("why not.")]


class Queue(msgspec.Struct, frozen=True):
    """The queue of a sender."""

    sender: Annotated[str, doc("whose queue it is.")]
    entries: Annotated[int, doc("how many changes wait.")]
    oldest: Annotated[Instant | None, doc("when the oldest of them was received.")]
    attempts: Annotated[int, doc("how often the oldest was tried.")]


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
    version: Annotated[str, doc("of auditord.")]
    durable: Annotated[bool, doc("whether a post would be durable.")]
    store: Annotated[Part, doc("the record store.")]
    spool: Annotated[Part, doc("the send-queue's file.")]
    records: Annotated[int | None, doc("how many there are; null while the store cannot say.")]
    differences: Annotated[int | None, doc("of them, how many came again with other content.")]
    queues: Annotated[list[Queue], doc("what waits for senders.")]
    quarantine: Annotated[list[QuarantineCount], doc("what could not be handled.")]
    gaps: Annotated[
        dict[str, Instant],
        doc("sites that have reported nothing for three of their usual intervals, with the end of their last record."),
    ]
    failing: Annotated[list[str], doc("the instances whose last run (of a sender: attempt) failed.")]


class ReloadWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reload that is asked for."""

    dry_run: Annotated[bool, doc("compare, and change nothing.")] = False


class OptionDifference(msgspec.Struct, frozen=True):
    """An option that the files say differently."""

    option: Annotated[str, doc("its dotted path.")]
    running: Annotated[Any, doc("the value in use; null if there is none, masked if it is secret.")]
    written: Annotated[Any, doc("the value in the files.")]


class Reloaded(msgspec.Struct, frozen=True):
    """The differences between the daemon and its files."""

    applied: Annotated[bool, doc("whether the daemon uses what the files say now.")]
    differences: Annotated[Sequence[OptionDifference], doc("option by option.")]
    instances: Annotated[Sequence[str], doc("instances that can be exchanged, with their sections.")]
    restart: Annotated[Sequence[str], doc("what takes a restart; if there is anything, nothing was changed.")]
