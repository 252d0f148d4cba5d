"""Check messages by APEL's own rules before they are sent."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Final

import msgspec

from auditord_builtin.apel.config import BENCHMARKS
from auditord_builtin.apel.messages import Problem, fold
from auditord_hookspecs.months import Month

_LONG: Final = 255
_LENGTHS: Final = {
    "Infrastructure": 20,
    "InfrastructureType": 20,
    "InfrastructureDescription": 100,
    "Queue": 100,
    "ServiceLevelType": 50,
}
_PERIOD: Final = ("Month", "Year", "EarliestEndTime", "LatestEndTime", "NumberOfJobs")
_WHO: Final = ("Site", "GlobalUserName", "VO", "VOGroup", "VORole", "SubmitHost")
_HOW_MUCH: Final = ("NodeCount", "Processors", "WallDuration", "CpuDuration")
NORMALISED: Final = ("NormalisedWallDuration", "NormalisedCpuDuration")
"""Durations times a benchmark."""

_COUNTS: Final = frozenset({"NumberOfJobs", "Processors", "NodeCount"})
_MOST_COUNTED: Final = 2**31 - 1
MOST: Final = 2**53
"""The maximum of all other whole numbers."""

_TIMES: Final = ("StartTime", "EndTime", "MemoryReal", "MemoryVirtual")
_JOB: Final = (
    *("MachineName", "Queue", "LocalJobId", "LocalUserId", "FQAN", "InfrastructureDescription", "InfrastructureType"),
    *("ServiceLevel", "SubmitHostType", "UpdateTime"),
)


class Rules(msgspec.Struct, frozen=True):
    """The rules for one kind of message.

    Args:
        longest: the size limit of each known field, in characters.
        texts: the fields that are plain texts.
        whole: the fields with whole numbers from 0, and the maximum of each.
        by_benchmark: the fields with values such as ``{HEPscore23: 12}``.
        mandatory: the fields that the parser or the database requires.
        key: the fields of APEL's key. A record replaces an earlier record with the same values.
    """

    longest: Mapping[str, int]
    texts: frozenset[str]
    whole: Mapping[str, int]
    by_benchmark: tuple[str, ...]
    mandatory: tuple[str, ...]
    key: tuple[str, ...]


def _make_rules(
    fields: tuple[str, ...], *, mandatory: tuple[str, ...], key: tuple[str, ...], by_benchmark: tuple[str, ...] = ()
) -> Rules:
    numbers = {*_PERIOD, *_HOW_MUCH, *NORMALISED, *_TIMES} & set(fields) - set(by_benchmark)
    whole = {field: _MOST_COUNTED if field in _COUNTS else MOST for field in numbers}
    longest = {field: _LENGTHS.get(field, _LONG) for field in fields}
    texts = frozenset(fields) - numbers - {*by_benchmark, "ServiceLevel"}
    return Rules(longest, texts, whole, by_benchmark, mandatory, key)


_SUMMARY_KEY: Final = (*_WHO, "Month", "Year", "NodeCount", "Processors")
_SUMMARY_FIELDS: Final = (*_WHO, *_PERIOD, *_HOW_MUCH, "InfrastructureDescription")
_SUMMARY_MANDATORY: Final = ("Site", "Month", "Year", *_HOW_MUCH, "NumberOfJobs")


def _rules_of_normalised(*, by_benchmark: bool) -> Rules:
    dicts = NORMALISED if by_benchmark else ()
    level = () if by_benchmark else ("ServiceLevelType",)
    return _make_rules(
        (*_SUMMARY_FIELDS, "Infrastructure", *NORMALISED, *level),
        mandatory=(*_SUMMARY_MANDATORY, *NORMALISED),
        key=(*_SUMMARY_KEY, "Infrastructure", NORMALISED[0] if by_benchmark else "ServiceLevelType"),
        by_benchmark=dicts,
    )


def _rules_of_plain(*, by_benchmark: bool) -> Rules:
    level = ("ServiceLevel",) if by_benchmark else ("ServiceLevel", "ServiceLevelType")
    return _make_rules(
        (*_SUMMARY_FIELDS, "InfrastructureType", *level),
        mandatory=(*_SUMMARY_MANDATORY, *level),
        key=(*_SUMMARY_KEY, "InfrastructureType", *level),
        by_benchmark=("ServiceLevel",) if by_benchmark else (),
    )


def _rules_of_jobs(*, by_benchmark: bool) -> Rules:
    level = ("ServiceLevel",) if by_benchmark else ("ServiceLevel", "ServiceLevelType")
    fields = (*_WHO, *_JOB, *_HOW_MUCH, *_TIMES, *level)
    return _make_rules(
        fields,
        mandatory=("Site", "LocalJobId", *_HOW_MUCH, "StartTime", "EndTime", *level),
        key=("Site", "LocalJobId", "EndTime"),
        by_benchmark=("ServiceLevel",) if by_benchmark else (),
    )


MESSAGES: Final[Mapping[str, Rules]] = {
    "APEL-normalised-summary-message: v0.4": _rules_of_normalised(by_benchmark=True),
    "APEL-summary-job-message: v0.3": _rules_of_normalised(by_benchmark=False),
    "APEL-summary-job-message: v0.4": _rules_of_plain(by_benchmark=True),
    "APEL-summary-job-message: v0.2": _rules_of_plain(by_benchmark=False),
    "APEL-individual-job-message: v0.4": _rules_of_jobs(by_benchmark=True),
    "APEL-individual-job-message: v0.3": _rules_of_jobs(by_benchmark=False),
    "APEL-sync-message: v0.1": _make_rules(
        ("Site", "SubmitHost", "NumberOfJobs", "Month", "Year"),
        mandatory=("Site", "NumberOfJobs", "Month", "Year"),
        key=("Site", "SubmitHost", "Month", "Year"),
    ),
}
"""The rules by the first line of the message."""

ACCELERATORS: Final = (
    *("MeasurementMonth", "MeasurementYear", "AssociatedRecordType", "AssociatedRecord", "FQAN", "SiteName", "Count"),
    *("AvailableDuration", "Type"),
)
"""The mandatory members of a record in the draft of the accelerator message."""


_NULL: Final = frozenset({"none", "null", ""})
_PLAIN_TEXT: Final = frozenset({"VO", "VOGroup", "VORole"})
_WHOLE: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?", re.ASCII)
_BENCHMARKS: Final = re.compile(r"\{(.*)\}")
_ODD: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_ENCRYPTED: Final = re.compile(r"application/(?:x-)?pkcs7-mime", re.IGNORECASE)
_MOST_LEVEL: Final = Decimal(10**7)
_LEAST_YEAR: Final = 1970
_DIGITS: Final = 20
"""Numbers of this many digits are too large, and perhaps too long to be parsed."""

_REMEMBERED: Final = 100


class _Validation(msgspec.Struct, frozen=True):
    """The check of one record of a message."""

    rules: Rules
    values: Mapping[str, str]
    now: datetime | None

    def faults(self) -> Sequence[str]:
        unknown = [f"{key}: APEL does not know this field here" for key in self.values if key not in self.rules.longest]
        missing = [f"{key} is missing" for key in self.rules.mandatory if key not in self.values]
        odd = [(key, value) for key, value in self.values.items() if not self._is_plain(key, value)]
        wrong = [fault for key, value in odd for fault in self._value_faults(key, value)]
        if not wrong:  # the checks below need valid numbers
            wrong = [*self._cross_faults()]
        return [*unknown, *missing, *wrong]

    def _is_plain(self, key: str, value: str) -> bool:
        """Return True for a text or number that needs no closer look, since messages have thousands of them."""
        if key in self.rules.texts:
            return len(value) <= self.rules.longest[key]
        most = self.rules.whole.get(key)
        return most is not None and len(value) < _DIGITS and value.isascii() and value.isdigit() and int(value) <= most

    def _value_faults(self, key: str, value: str) -> Iterator[str]:
        longest = self.rules.longest.get(key)
        if longest is not None and len(value) > longest:
            yield f"{key} has {len(value)} characters, at most {longest} fit"
        elif key in self.rules.whole:
            most = self.rules.whole[key]
            if not _WHOLE.fullmatch(value):
                yield f"{key} is {value[:40]!r}, not a whole number"
            elif not 0 <= int(value) <= most:
                yield f"{key} is {value[:40]}, not from 0 to {most}"
        elif key in self.rules.by_benchmark:
            found = _BENCHMARKS.fullmatch(value)
            numbers = [] if found is None else [part.partition(":")[2].strip() for part in found[1].split(",")]
            names = _benchmarks(value)
            if not numbers or not all(
                _DECIMAL.fullmatch(number) and 0 <= Decimal(number) <= MOST for number in numbers
            ):
                yield f"{key} is {value[:60]!r}, not a benchmark and a number such as {{HEPscore23: 1}}"
            elif len(set(names)) < len(names) or not set(names) <= set(BENCHMARKS):
                yield f"{key} is {value[:60]!r}: give each benchmark once, of {', '.join(BENCHMARKS.values())}"
        elif key == "ServiceLevel" and not (_DECIMAL.fullmatch(value) and 0 <= Decimal(value) < _MOST_LEVEL):
            yield f"ServiceLevel is {value[:40]!r}, not a number from 0 to {_MOST_LEVEL}"

    def _number(self, key: str) -> int | None:
        return int(self.values[key]) if key in self.values else None

    def _cross_faults(self) -> Iterator[str]:
        """Yield the faults of several fields together, whose numbers are valid."""
        year, number = self._number("Year"), self._number("Month")
        if year is not None and number is not None:
            yield from self._month_faults(year, number)
        start, end = self._number("StartTime"), self._number("EndTime")
        if start is not None and end is not None and end < start:
            yield "EndTime lies before StartTime"
        if end is not None and self.now is not None and end > (self.now + timedelta(days=2)).timestamp():
            yield "EndTime lies in the future"
        kinds = {_benchmarks(self.values[key]) for key in self.rules.by_benchmark if key in self.values}
        if len(kinds) > 1:
            yield "the durations are normalised with different benchmarks"
        kind = self.values.get("ServiceLevelType")
        if kind is not None and kind.lower() not in BENCHMARKS:
            yield f"ServiceLevelType is {kind[:40]!r}, not one of {', '.join(BENCHMARKS.values())}"

    def _month_faults(self, year: int, number: int) -> Iterator[str]:
        if year < _LEAST_YEAR:
            yield f"Year is {year}"
            return
        try:
            month = Month(year, number)
        except ValueError:
            yield f"{year}-{number} is not a month"
            return
        if self.now is not None and month.start > self.now:
            yield f"{month} lies in the future"
        first, last = self._number("EarliestEndTime"), self._number("LatestEndTime")
        begin, end = _ends_of(month)
        if any(moment is not None and not begin <= moment <= end for moment in (first, last)):
            yield f"EarliestEndTime or LatestEndTime is not in {month}"
        if first is not None and last is not None and first > last:
            yield "EarliestEndTime lies after LatestEndTime"


def validate(message_text: str, now: datetime | None = None) -> Sequence[Problem]:
    """Return the reasons why APEL would refuse the message.

    Args:
        message_text: the text to be signed.
        now: the current time, to find times in the future; None to skip this check.
    """
    if message_text.startswith("{"):
        try:
            document = json.loads(message_text)
            records = list(document["UsageRecords"])
        except (KeyError, TypeError, ValueError):
            return [Problem("message", "it has no UsageRecords in JSON")]
        return [
            Problem(f"record {number}", f"{name} is missing")
            for number, record in enumerate(records, 1)
            for name in ACCELERATORS
            if record.get(name) is None
        ] + [Problem("message", fault) for fault in _text_faults(message_text)]
    header, _, body = message_text.partition("\n")
    rules = MESSAGES.get(header.rstrip())
    if rules is None:
        return [Problem("message", f"APEL knows no message that begins with {header[:60]!r}")]
    if faults := list(_text_faults(message_text)):
        return [Problem("message", fault) for fault in faults]
    *blocks, rest = body.split("%%")
    problems = [] if not rest.strip() else [Problem("message", "the last record is not closed by %%")]
    problems += [] if blocks else [Problem("message", "it contains no record")]
    seen: set[tuple[str, ...]] = set()
    for number, block in enumerate(blocks, 1):
        problems += [Problem(f"record {number}", fault) for fault in _block_faults(rules, block, now, seen)]
    return problems


def _text_faults(text: str) -> Iterator[str]:
    # Both searches are slow, so quick checks come first: messages have megabytes, and matches are rare.
    if not text.replace("\n", "").isprintable() and _ODD.search(text):
        yield "it contains a control character"
    if "pkcs7" in text.casefold() and _ENCRYPTED.search(text):
        yield "the receiver would mistake it for an encrypted message"


def _block_faults(rules: Rules, block: str, now: datetime | None, seen: set[tuple[str, ...]]) -> Iterator[str]:
    lines = [line.partition(":") for line in block.split("\n") if line.strip()]
    pairs = [(key.strip(), value.strip()) for key, colon, value in lines if colon]
    if len(pairs) < len(lines):
        yield "a line has no colon"
        return
    values = dict(pairs)
    if len(values) < len(pairs):
        yield "a key appears twice"
    values = {key: value for key, value in pairs if key in _PLAIN_TEXT or value.lower() not in _NULL}
    yield from _Validation(rules, values, now).faults()
    texts = [(name, values.get(name, "None")) for name in rules.key]
    # For normalised durations, the key contains only the benchmark; for a service level, also the value.
    key = tuple([",".join(_benchmarks(text)) if name in NORMALISED else fold(text) for name, text in texts])
    if key in seen:
        yield "it has the key of an earlier record, and would replace it"
    seen.add(key)


@lru_cache(_REMEMBERED)
def _benchmarks(value: str) -> tuple[str, ...]:
    """Return the names in ``{HEPscore23: 1}``, in lower case and sorted."""
    found = _BENCHMARKS.fullmatch(value)
    names = () if found is None else [part.partition(":")[0].strip().lower() for part in found[1].split(",")]
    return tuple(sorted(names))


@lru_cache(_REMEMBERED)
def _ends_of(month: Month) -> tuple[int, int]:
    """Return the first instants of a month and of the next month, in seconds since 1970."""
    return int(month.start.timestamp()), int(month.next.start.timestamp())
