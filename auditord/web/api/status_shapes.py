"""The shapes of answers about the daemon: its instances, and its health."""

import msgspec

from auditord.web.api.shapes import Instant


class Run(msgspec.Struct, frozen=True):
    """A run that has ended.

    Args:
        started: when it began.
        seconds: how long it took.
        error: what went wrong, or null.
        records: how many records it brought that were new.
        quarantined: how many jobs it put into quarantine.
        skipped: how many jobs made no record on purpose, by reason.
    """

    started: Instant
    seconds: float
    error: str | None
    records: int
    quarantined: int
    skipped: dict[str, int]


class HeldTurn(msgspec.Struct, frozen=True):
    """The turn of a plugin, which one process at a time has.

    Args:
        host: of the holder.
        process: its process id there.
        since: when it got the turn.
        expired: whether it has not renewed its lease in time, so that any other may take over.
    """

    host: str
    process: int
    since: Instant
    expired: bool


class Instance(msgspec.Struct, frozen=True):
    """A collector, a plugin or a sender.

    Args:
        name: in the configuration.
        kind: what it is.
        section: ``collectors``, ``plugins`` or ``senders``.
        enabled: whether it takes part; of one that does not, nothing else is known.
        running: whether a run is going on; of a sender, always.
        next_run: when the clock asks for the next run.
        last_started: when the last run began.
        last_success: when something last went well.
        failures: failures in a row.
        last_error: what went wrong at last, or null if it went well.
        last_runs: the last runs that ended, the newest first.
        turn: of a plugin: who runs it at the moment, where daemons of several hosts may.
    """

    name: str
    kind: str
    section: str
    enabled: bool
    running: bool
    next_run: Instant | None
    last_started: Instant | None
    last_success: Instant | None
    failures: int
    last_error: str | None
    last_runs: list[Run]
    turn: HeldTurn | None = None


class Instances(msgspec.Struct, frozen=True):
    """Every instance of the configuration."""

    instances: list[Instance]


class Part(msgspec.Struct, frozen=True):
    """A part that must be able to write.

    Args:
        works: whether it could a moment ago.
        error: why not.
    """

    works: bool
    error: str | None


class Queue(msgspec.Struct, frozen=True):
    """What waits for a sender.

    Args:
        sender: whose queue it is.
        entries: how many changes wait.
        oldest: when the oldest of them was received.
        attempts: how often the oldest was tried.
    """

    sender: str
    entries: int
    oldest: Instant | None
    attempts: int


class QuarantineCount(msgspec.Struct, frozen=True):
    """How much of one source is in quarantine."""

    task: str
    stage: str
    entries: int


class HealthReport(msgspec.Struct, frozen=True):
    """How the daemon fares.

    Args:
        status: ``ok``; ``degraded`` (something fails, but a post would be durable); ``failing`` (it would not).
        version: of auditord.
        durable: whether a post would be durable.
        store: the record store.
        spool: the send-queue's file.
        records: how many there are; null while the store cannot say.
        differences: of them, how many came again with other content.
        queues: what waits for senders.
        quarantine: what could not be handled.
        failing: the instances whose last run (of a sender: attempt) failed.
    """

    status: str
    version: str
    durable: bool
    store: Part
    spool: Part
    records: int | None
    differences: int | None
    queues: list[Queue]
    quarantine: list[QuarantineCount]
    failing: list[str]
