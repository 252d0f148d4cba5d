"""What answers of ``/api/v1`` look like; ``/openapi.json`` is made from these types, and answers are made of them."""

from typing import Annotated, Any

import msgspec

from auditord_hookspecs.records import Component, Meta

Instant = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
"""UTC, with ``Z``."""


class StoredRecord(msgspec.Struct, frozen=True):
    """A record.

    Args:
        record_id: unique in the store.
        meta: lists of texts by key, or null where there are none.
        components: what the job held.
        start_time: when it started.
        stop_time: when it stopped, or null while it runs.
        runtime: whole seconds from start to stop, or null while it runs.
    """

    record_id: str
    meta: Meta | None
    components: tuple[Component, ...]
    start_time: Instant
    stop_time: Instant | None
    runtime: int | None


class RecordPage(msgspec.Struct, frozen=True):
    """Some records.

    Args:
        records: in the order of their start times, ties by id.
        next: where to ask for what follows, or null if that was all.
    """

    records: list[StoredRecord]
    next: str | None


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one record.

    Args:
        position: in the request, from 0.
        verdict: ``added``; ``closed`` (it was open); ``same`` (it was there); ``different`` (the same run was there
            with other content, which stays); ``queued`` (kept durably until the record store is back); ``exists``
            (refused: the id belongs to another run); ``invalid`` (refused: it is no record); ``forbidden`` (refused: it
            is not the sender's to write).
        record_id: whose record it is, as far as that can be read.
        reason: why it was refused.
    """

    position: int
    verdict: str
    record_id: str | None = None
    reason: str | None = None


class Verdicts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of each record that was posted.

    Args:
        counts: how many records there are of each verdict.
        verdicts: one for each record that is listed, in the order of the request.
        unlisted: how many records are counted and not listed: of more than 10,000, those that were accepted, unless
            ``verdicts=all`` asks for them; and what is beyond the longest list.
    """

    counts: dict[str, int]
    verdicts: list[Verdict]
    unlisted: int = 0


class QuarantineEntry(msgspec.Struct, frozen=True):
    """Something that could not be handled.

    Args:
        number: what commands call it.
        task: the collector; of an entry the sender; of a body ``api``.
        stage: ``job``, ``record``, ``entry`` or ``body``.
        source_id: what the source calls it.
        reason: what is wrong.
        at: when it came last.
        occurrences: how often it came.
        route: of a body: where it was posted.
    """

    number: int
    task: str
    stage: str
    source_id: str
    reason: str
    at: Instant
    occurrences: int
    route: str | None


class QuarantinePage(msgspec.Struct, frozen=True):
    """Some of the quarantine, the oldest first.

    Args:
        entries: without their raw input.
        next: where to ask for what follows, or null if that was all.
    """

    entries: list[QuarantineEntry]
    next: str | None


class QuarantinedInput(QuarantineEntry, frozen=True):
    """The same with its raw input, and who brought it.

    Args:
        raw: JSON, or a text where it is none.
        principal: who brought it, where that is known.
        agent: with which program.
    """

    raw: Any  # Any: whatever a source gave
    principal: str | None
    agent: str | None


class Chosen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entries of the quarantine, by number."""

    ids: list[int]


class Discarded(msgspec.Struct, frozen=True):
    """How many entries were there and are gone."""

    discarded: int


class Amounts(msgspec.Struct, frozen=True):
    """Sums over components.

    Args:
        amount: of their amounts.
        amount_runtime: of amount times runtime, in ticks.
    """

    amount: int
    amount_runtime: int


class ScoreValueAmounts(msgspec.Struct, frozen=True):
    """Sums over the components with one value of a score.

    Args:
        value: of the score, in decimal.
        amount: of their amounts.
        amount_runtime: of amount times runtime, in ticks.
    """

    value: str
    amount: int
    amount_runtime: int


class ScoredAmounts(msgspec.Struct, frozen=True):
    """Sums of products with a score, exact.

    Args:
        amount: of amount times score, in decimal; components without the score are left out.
        amount_runtime: of amount times score times runtime in ticks, in decimal; the same.
        unscored: the sums over the components without the score.
        by_value: the sums before the multiplication, by the value of the score.
    """

    amount: str
    amount_runtime: str
    unscored: Amounts
    by_value: list[ScoreValueAmounts]


class UsedComponent(msgspec.Struct, frozen=True):
    """What the components of one name come to.

    Args:
        amount: the sum of their amounts.
        amount_runtime: the sum of amount times runtime, in ticks.
        scores: by the name of each score that was asked for.
    """

    amount: int
    amount_runtime: int
    scores: dict[str, ScoredAmounts]


class GroupSums(msgspec.Struct, frozen=True):
    """The sums over one group of records.

    Args:
        key: by what each dimension was called in ``by``: a text, an amount, true or false, a score in decimal, the
            first day of a period, or null where a record has no such value.
        records: how many there are.
        runtime: the sum of their runtimes, in ticks.
        first_stop: the earliest stop among them.
        last_stop: the latest.
        usage: by the name of each component that was asked for.
    """

    key: dict[str, str | int | bool | None]
    records: int
    runtime: int
    first_stop: Instant
    last_stop: Instant
    usage: dict[str, UsedComponent]


class Sums(msgspec.Struct, frozen=True):
    """Sums over records, as integers of any size: a program that reads JSON numbers as floats loses digits of them.

    Args:
        ticks_per_second: in which unit runtimes are summed: 1 for seconds or, with ``from`` and ``to``, 1000000.
        groups: in the order of their keys.
    """

    ticks_per_second: int
    groups: list[GroupSums]
