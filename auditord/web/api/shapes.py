"""The shapes of answers of ``/api/v1``; ``/openapi.json`` is made from these types, and answers are made of them."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from auditord.web.problem_shapes import doc
from auditord_hookspecs import records
from auditord_hookspecs.records import Component

Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""UTC, with ``Z``."""


class StoredRecord(msgspec.Struct, frozen=True):
    """A record."""

    record_id: Annotated[str, doc("unique in the store.")]
    meta: Annotated[records.Meta | None, doc("lists of texts by key, or null where there are none.")]
    components: Annotated[tuple[Component, ...], doc("what the job held.")]
    start_time: Annotated[Instant, doc("when it started.")]
    stop_time: Annotated[Instant | None, doc("when it stopped, or null while it runs.")]
    runtime: Annotated[int | None, doc("whole seconds from start to stop, or null while it runs.")]


class RecordPage(msgspec.Struct, frozen=True):
    """Some records."""

    records: Annotated[list[StoredRecord], doc("in the order of their start times, ties by id.")]
    next: Annotated[str | None, doc("where to ask for what follows, or null if that was all.")]


class QuarantineEntry(msgspec.Struct, frozen=True):
    """Something that could not be handled."""

    number: Annotated[int, doc("what commands call it.")]
    task: Annotated[str, doc("the collector; of an entry the sender; of a body ``api``.")]
    stage: Annotated[str, doc("``job``, ``record``, ``entry`` or ``body``.")]
    source_id: Annotated[str, doc("what the source calls it.")]
    reason: Annotated[str, doc("what is wrong.")]
    at: Annotated[Instant, doc("when it came last.")]
    occurrences: Annotated[int, doc("how often it came.")]
    route: Annotated[str | None, doc("of a body: where it was posted.")]


class QuarantinePage(msgspec.Struct, frozen=True):
    """Some of the quarantine, the oldest first."""

    entries: Annotated[list[QuarantineEntry], doc("without their raw input.")]
    next: Annotated[str | None, doc("where to ask for what follows, or null if that was all.")]


class QuarantinedInput(QuarantineEntry, frozen=True):
    """The same with its raw input and its sender."""

    raw: Annotated[Any, doc("JSON, or a text where it is none.")]  # Any: whatever a source gave
    principal: Annotated[str | None, doc("the principal that sent it, where that is known.")]
    agent: Annotated[str | None, doc("with which program.")]


class Chosen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entries of the quarantine, by number."""

    ids: list[int]


class Discarded(msgspec.Struct, frozen=True):
    """The count of entries that are gone."""

    discarded: int


class Amounts(msgspec.Struct, frozen=True):
    """Sums over components."""

    amount: Annotated[int, doc("of their amounts.")]
    amount_runtime: Annotated[int, doc("of amount times runtime, in ticks.")]


class ScoreValueAmounts(msgspec.Struct, frozen=True):
    """Sums over the components with one value of a score."""

    value: Annotated[str, doc("of the score, in decimal.")]
    amount: Annotated[int, doc("of their amounts.")]
    amount_runtime: Annotated[int, doc("of amount times runtime, in ticks.")]


class ScoredAmounts(msgspec.Struct, frozen=True):
    """Sums of products with a score, exact."""

    amount: Annotated[str, doc("of amount times score, in decimal; components without the score are left out.")]
    amount_runtime: Annotated[str, doc("of amount times score times runtime in ticks, in decimal; the same.")]
    unscored: Annotated[Amounts, doc("the sums over the components without the score.")]
    by_value: Annotated[list[ScoreValueAmounts], doc("the sums before the multiplication, by the value of the score.")]


class UsedComponent(msgspec.Struct, frozen=True):
    """The sums over the components of one name."""

    amount: Annotated[int, doc("the sum of their amounts.")]
    amount_runtime: Annotated[int, doc("the sum of amount times runtime, in ticks.")]
    scores: Annotated[dict[str, ScoredAmounts], doc("by the name of each score that was asked for.")]


class GroupSums(msgspec.Struct, frozen=True):
    """The sums over one group of records."""

    key: Annotated[
        dict[str, str | int | bool | None],
        Meta(
            description="by what each dimension was called in ``by``: a text, an amount, true or false, a score in "
            "decimal, the first day of a period, or null where a record has no such value."
        ),
    ]
    records: Annotated[int, doc("how many there are.")]
    runtime: Annotated[int, doc("the sum of their runtimes, in ticks.")]
    first_stop: Annotated[Instant, doc("the earliest stop among them.")]
    last_stop: Annotated[Instant, doc("the latest.")]
    usage: Annotated[dict[str, UsedComponent], doc("by the name of each component that was asked for.")]


class Sums(msgspec.Struct, frozen=True):
    """Sums over records, as integers of any size: a program that reads JSON numbers as floats loses digits of them."""

    ticks_per_second: Annotated[
        int, doc("in which unit runtimes are summed: 1 for seconds or, with ``from`` and ``to``, 1000000.")
    ]
    groups: Annotated[list[GroupSums], doc("in the order of their keys.")]
