"""Records and their components: values that are validated when they are constructed.

The rules are those of AUDITOR's wire contract: names are not blank and have 1 to 256 extended grapheme clusters,
amounts fit in 63 bits, and scores are not negative. Every store needs three more rules: no NUL character, at most 1,024
bytes of UTF-8 in a name (an index entry of PostgreSQL has 2,704 bytes, and some contain two names), and times in the
years 1 to 9999. Constructors check text, numbers and times. Decoding checks types, and the spool decodes every record
once before it stores it.
"""

import math
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec.structs import force_setattr

from auditord_hookspecs.errors import InvalidRecord
from auditord_hookspecs.vocabulary import HELD, TOTALS, has_both_forms

MAX_NAME_GRAPHEMES = 256
MAX_NAME_BYTES = 1_024
MAX_AMOUNT = 2**63 - 1

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_BYTES)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)]
ScoreValue = Annotated[float, msgspec.Meta(ge=0)]
Meta = dict[Name, tuple[Name, ...]]

PROVENANCE_KEYS = frozenset({"collector_type", "collector_version"})
"""Meta keys that name the program that made a record. Two records that differ only in these keys are the same."""

USER_KEYS = frozenset({"user_id", "user"})
"""Meta keys that name the user of a job. A record that lacks only these keys is the same, since retention may have
removed them."""

_MOST_CHECKED = 4_096

_NO_SPACE = frozenset("\x1c\x1d\x1e\x1f")
"""Separators that are white space for Python, but not by the Unicode property, which AUDITOR follows."""


class Score(msgspec.Struct, frozen=True, gc=False):
    """A benchmark value attached to a component, such as HEPscore23 per core.

    Args:
        name: the benchmark's name, such as ``hepscore23``.
        value: the score per unit of the component's amount; finite, not negative.

    Example::

        Score("hepscore23", 12.5)
    """

    name: Name
    value: ScoreValue

    def __post_init__(self) -> None:
        if self.name not in _checked:
            _check_again(self.name)
        if not (0 <= self.value < math.inf):
            raise InvalidRecord(
                f"Parsing '{self.value}' failed: the value of score {self.name!r} must be finite and at least 0"
            )
        if type(self.value) is not float:  # decoded values always are floats
            force_setattr(self, "value", float(self.value))


class Component(msgspec.Struct, frozen=True, gc=False):
    """An amount of one quantity, in the unit that the name implies.

    Args:
        name: one of :data:`auditord_hookspecs.vocabulary.QUANTITIES` where it fits, such as ``Cores`` or ``Memory``.
        amount: a whole number from 0 to 2**63 - 1.
        scores: the scores of the resource; may be empty.

    Example::

        Component("Cores", 8, (Score("hepscore23", 12.5),))
    """

    name: Name
    amount: Amount
    scores: tuple[Score, ...]

    def __post_init__(self) -> None:
        if self.name not in _checked:
            _check_again(self.name)
        if not 0 <= self.amount <= MAX_AMOUNT:
            raise InvalidRecord(
                f"Parsing '{self.amount}' failed: the amount of component {self.name!r} must be from 0 to 2**63 - 1"
            )


class Record(msgspec.Struct, frozen=True, gc=False):
    """The accounting data of one job. A record without a stop time is open.

    Args:
        record_id: an id that is unique in the store, and the same when the job is collected again.
        start_time: aware; stored in UTC with microseconds.
        components: the job's resources; may be empty. Only one form of each: ``Cores`` or ``CoreSeconds``.
        stop_time: aware, or None while the job runs. A stop before the start is stored, but left out of sums.
        meta: lists of texts by key (``site_id``, ``group_id``, ``user_id``, …), or None.

    Example::

        Record(
            record_id="pbs-17.server1",
            start_time=datetime(2026, 1, 1, 8, tzinfo=UTC),
            components=(Component("Cores", 8, ()),),
            stop_time=datetime(2026, 1, 1, 9, tzinfo=UTC),
            meta={"site_id": ("my-site",), "user_id": ("alice",)},
        )
    """

    record_id: Name
    start_time: datetime
    components: tuple[Component, ...]
    stop_time: datetime | None = None
    meta: Meta | None = None

    def __post_init__(self) -> None:
        check_name(self.record_id)
        if self.meta:
            _check_meta(self.meta)
        for component in self.components:
            if component.name in HELD:
                if (name := has_both_forms(component.name for component in self.components)) is not None:
                    raise InvalidRecord(
                        f"Parsing '{TOTALS[name]}' failed: the record also has {name}, and would count twice: "
                        "leave one of them out"
                    )
                break
        start, stop = self.start_time, self.stop_time
        if start.tzinfo is not UTC:
            force_setattr(self, "start_time", in_utc(start))
        if stop is not None and stop.tzinfo is not UTC:
            force_setattr(self, "stop_time", in_utc(stop))

    @property
    def runtime(self) -> int | None:
        """Whole seconds from start to stop, truncated toward zero (may be negative); None while open."""
        return None if self.stop_time is None else runtime_seconds(self.start_time, self.stop_time)


class RecordUpdate(msgspec.Struct, frozen=True, gc=False):
    """An update that closes a record. Only the id and the stop time have an effect; the rest must be valid.

    Args:
        record_id: the id of the open record.
        components: valid, but ignored.
        stop_time: the stop time (aware).
        start_time: valid, but ignored.
        meta: valid, but ignored.
    """

    record_id: Name
    components: tuple[Component, ...]
    stop_time: datetime
    start_time: datetime | None = None
    meta: Meta | None = None

    def __post_init__(self) -> None:
        check_name(self.record_id)
        if self.meta:
            _check_meta(self.meta)
        force_setattr(self, "stop_time", in_utc(self.stop_time))
        if self.start_time is not None:
            force_setattr(self, "start_time", in_utc(self.start_time))


def check_name(text: str) -> None:
    """Raise :class:`InvalidRecord` unless the text is a valid name by the rules of this module."""
    if not text or (text.isspace() and _NO_SPACE.isdisjoint(text)):
        raise InvalidRecord(f"Parsing '{text}' failed: a name must not be empty or blank")
    if "\0" in text:
        raise InvalidRecord(f"Parsing {text[:40]!r} failed: a name must not contain NUL")
    if len(text) > MAX_NAME_GRAPHEMES or not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"Parsing {text[:40]!r} failed: a lone surrogate is not text") from error
        if size > MAX_NAME_BYTES:
            raise InvalidRecord(f"Parsing {text[:40]!r}… failed: a name has at most {MAX_NAME_BYTES} bytes")
        if len(text) > MAX_NAME_GRAPHEMES:
            import regex  # noqa: PLC0415 only for very long names

            if len(regex.findall(r"\X", text)) <= MAX_NAME_GRAPHEMES:
                return
            raise InvalidRecord(f"Parsing {text[:40]!r}… failed: a name has at most {MAX_NAME_GRAPHEMES} characters")


_checked: dict[str, None] = {}
"""Names known to be valid. Most names occur in many records, and a look-up takes a third of the time of a check."""


def _check_again(text: str) -> None:
    check_name(text)
    if len(_checked) >= _MOST_CHECKED:
        _checked.clear()
    _checked[text] = None


def _check_meta(meta: Meta) -> None:
    for key, values in meta.items():
        if key not in _checked:
            _check_again(key)
        for value in values:
            if value not in _checked:
                _check_again(value)


def in_utc(moment: datetime) -> datetime:
    """Return the same instant in UTC.

    Raises:
        InvalidRecord: the time has no zone, or is outside the years 1 to 9999 in UTC.
    """
    if moment.tzinfo is UTC:
        return moment
    if moment.tzinfo is None:
        raise InvalidRecord(f"Parsing '{moment.isoformat()}' failed: a time needs a zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidRecord(f"Parsing '{moment.isoformat()}' failed: out of range in UTC") from error


def runtime_seconds(start: datetime, stop: datetime) -> int:
    """Return the whole seconds between two instants, truncated toward zero."""
    span = stop - start
    seconds = span.days * 86_400 + span.seconds  # rounded down
    return seconds + 1 if seconds < 0 and span.microseconds else seconds
