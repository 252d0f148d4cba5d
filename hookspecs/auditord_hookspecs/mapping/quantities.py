"""Parse the numbers and times that batch systems print, and look up the value that a rule selects in a row.

A string has a value, means "missing", or is invalid for a reason. The formats are those of Slurm's ``sacct`` (``man
sacct``, *Job Accounting Fields*) and of AUDITOR's ``key_type``. Nearly all numbers are plain digits, and each job has
several, so these are parsed without a regular expression.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from typing import Final, TypeAlias

from auditord_hookspecs.errors import InvalidRecord
from auditord_hookspecs.mapping.rules import (
    PLACEHOLDER,
    ComponentRule,
    KeyType,
    MetaRule,
    ScoreRule,
    SiteRule,
    ValueRule,
)
from auditord_hookspecs.records import MAX_AMOUNT

Row: TypeAlias = Mapping[str, str]
"""The values of one job by column name, as strings."""


class PartialRow(Mapping[str, str]):
    """A row in which some columns cannot be read. Reading one of these raises InvalidRecord with the reason.

    Args:
        row: all other columns.
        faults: the reason for each column that cannot be read.
    """

    def __init__(self, row: Row, faults: Mapping[str, str]) -> None:
        self._row = row
        self._faults = faults

    def __getitem__(self, column: str) -> str:
        if column in self._faults:
            raise InvalidRecord(self._faults[column])
        return self._row[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)


_SENTINELS = frozenset(
    {"", "Unknown", "None", "INVALID", "UNLIMITED", "Partition_Limit", "N/A", "(null)", "undefined", "Not Set"}
    # Slurm's NO_VAL and INFINITE in 32 and 64 bits, printed as numbers.
    | {"4294967294", "4294967295", "18446744073709551614", "18446744073709551615"}
)
_UNKNOWN_CODE = re.compile(r"[0-9]+\?")

_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?")
_SIZE = re.compile(r"([+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?)(?:([KMGTPE])(?:iB|i|B)?)?", re.IGNORECASE)
_ENERGY = re.compile(r"([+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?)([KMGTPE]?)J?", re.IGNORECASE)
_CLOCK = re.compile(r"(?:(?:([0-9]{1,6})-)?([0-9]{1,6}):)?([0-9]{1,2}):([0-9]{1,2}(?:\.[0-9]{1,9})?)")
_MAX_EPOCH_DIGITS: Final = 11
"""The maximum number of digits in seconds since 1970; a longer number is not a time."""

_MAX_DIGITS: Final = 30
_PREFIXES = "KMGTPE"


def is_missing(text: str) -> bool:
    """Return whether a string means "unknown": empty, ``Unknown``, ``INVALID``, ``16?``, NO_VAL and similar ones."""
    if text.isdigit():
        return text in _SENTINELS
    stripped = text.strip()
    return stripped in _SENTINELS or (stripped.endswith("?") and _UNKNOWN_CODE.fullmatch(stripped) is not None)


def _is_plain(text: str) -> bool:
    return text.isdigit() and text.isascii() and len(text) <= _MAX_DIGITS


def parse_number(text: str) -> Decimal:
    """Parse a plain number: ``12``, ``-3``, ``1.50``.

    Raises:
        InvalidRecord: the string is not a number.
    """
    stripped = text.strip()
    if not _is_plain(stripped) and _NUMBER.fullmatch(stripped) is None:
        raise InvalidRecord(f"{text[:60]!r} is not a number")
    return Decimal(stripped)


def parse_size(text: str) -> Decimal:
    """Parse bytes from ``412717056``, ``132384K``, ``1.5G``, ``4GiB``. Prefixes are powers of 1,024, as in Slurm.

    Raises:
        InvalidRecord: the string is not a size.
    """
    stripped = text.strip()
    if _is_plain(stripped):
        return Decimal(stripped)
    return _scale(_SIZE.fullmatch(stripped), 1_024, text, "a size such as 2000M or 1.5G")


def parse_energy(text: str) -> Decimal:
    """Parse joules from ``512``, ``1.23K``. Prefixes are powers of 1,000, as in Slurm for energy.

    Raises:
        InvalidRecord: the string is not an energy.
    """
    return _scale(_ENERGY.fullmatch(text.strip()), 1_000, text, "an energy such as 512 or 1.23K")


def _scale(match: "re.Match[str] | None", base: int, text: str, expected: str) -> Decimal:
    if match is None:
        raise InvalidRecord(f"{text[:60]!r} is not {expected}")
    power = _PREFIXES.index(match[2].upper()) + 1 if match[2] else 0
    return Decimal(match[1]) * Decimal(base) ** power


def parse_duration(text: str) -> Decimal:
    """Parse seconds, with their fraction, from ``[[D-]H:]MM:SS[.f]`` or a plain number of seconds.

    Raises:
        InvalidRecord: the string is not a duration.
    """
    stripped = text.strip()
    if _is_plain(stripped) or _NUMBER.fullmatch(stripped) is not None:
        return Decimal(stripped)
    match = _CLOCK.fullmatch(stripped)
    if match is None:
        raise InvalidRecord(f"{text[:60]!r} is not a duration such as 1-02:03:04.567 or 03:04.567")
    days, hours, minutes, seconds = match.groups("0")
    return ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + Decimal(seconds)


def parse_instant(text: str) -> datetime:
    """Parse an instant in UTC from seconds since 1970 or ISO 8601. A time without a zone is UTC.

    Raises:
        InvalidRecord: the string is not a time, or the date does not exist.
    """
    stripped = text.strip()
    try:
        if stripped.isdigit() and len(stripped) <= _MAX_EPOCH_DIGITS and stripped.isascii():
            return datetime.fromtimestamp(int(stripped), UTC)
        moment = datetime.fromisoformat(stripped)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRecord(f"{text[:60]!r} is not a time such as 1700000000 or 2023-11-14T22:13:20Z") from error


def parse_time(text: str) -> datetime | None:
    """Parse an instant, or return None if it is unknown. Batch systems print 0 for no time, which is never 1970.

    Raises:
        InvalidRecord: the string is not a time, or the date does not exist.
    """
    return None if text == "0" or is_missing(text) else parse_instant(text)


def sub_value(text: str, key: str) -> str:
    """Return the value of a key in a list such as ``cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=2G``; empty if it is missing.

    A typed resource is listed twice, as ``gres/gpu:a100`` and within ``gres/gpu``. If the list has only typed entries,
    the value is their sum. So ``gres/gpu`` counts each GPU once.
    """
    if key not in text:
        return ""
    listed = f",{text},"
    begin = listed.rfind(f",{key}=")
    if begin >= 0:
        value = begin + len(key) + 2
        return listed[value : listed.index(",", value)]
    pairs = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    typed = [parse_number(value) for name, value in pairs.items() if name.startswith(f"{key}:")]
    return f"{sum(typed):f}" if typed else ""


_MEBIBYTE: Final = 1_024**2
_ONE: Final = Decimal(1)

_PARSERS: Final[Mapping[KeyType, Callable[[str], Decimal]]] = {
    KeyType.INTEGER: parse_number,
    KeyType.INTEGER_MEGA: lambda text: parse_size(text) / _MEBIBYTE,
    KeyType.SIZE: parse_size,
    KeyType.TIME: parse_duration,
    KeyType.ENERGY: parse_energy,
}
_ROUNDING: Final = {KeyType.TIME: ROUND_DOWN}
_NONZERO_DIGITS: Final = frozenset("123456789")
_UNSCALED: Final = _PARSERS.keys() - {KeyType.INTEGER_MEGA}
"""The types for which plain digits are the value itself."""


def read_number(rule: ValueRule, text: str, factor: Decimal = _ONE) -> int:
    """Parse a string as the rule's numeric type, multiply it, and round it once: times down, all others half up.

    Raises:
        InvalidRecord: the string is not of this type.
    """
    if text.isdigit() and factor == _ONE and rule.key_type in _UNSCALED and _is_plain(text):
        return int(text)
    number = _PARSERS[rule.key_type](text) * factor
    return int(number.to_integral_value(_ROUNDING.get(rule.key_type, ROUND_HALF_UP)))


def is_zero(text: str) -> bool:
    """Return whether a number, size or duration is zero: ``0``, ``0.0``, ``0K``, ``00:00:00``."""
    return "0" in text and _NONZERO_DIGITS.isdisjoint(text)


def read_amount(rule: ComponentRule, row: Row, *, zero_is_missing: bool = False) -> int | None:
    """Return the amount of a component; None if it is missing and the rule allows that.

    Args:
        rule: the component's rule.
        row: the job's values.
        zero_is_missing: True if a zero in the row means "not measured".

    Raises:
        InvalidRecord: the amount is missing but required, or the column cannot be read as an amount.
    """
    if rule.value is not None:
        return rule.value
    text = read_text(rule, row)
    if is_missing(text) or (zero_is_missing and is_zero(text)):
        if rule.default_value is None and not rule.optional and not (rule.key_allow_empty and not text):
            raise InvalidRecord(f"no value ({text!r}); give it a default_value or make it optional")
        return rule.default_value
    amount = read_number(rule, text, rule.factor)
    if not 0 <= amount <= MAX_AMOUNT:
        raise InvalidRecord(f"{amount} is not between 0 and {MAX_AMOUNT}")
    return amount


def read_text(rule: ValueRule, row: Row) -> str:
    """Return the string that a rule selects in the row, or an empty one.

    Raises:
        InvalidRecord: a list of pairs cannot be read, or the column is unreadable (see :class:`PartialRow`).
    """
    if isinstance(rule, MetaRule) and rule.template is not None:
        if not all(row.get(key) for key in PLACEHOLDER.findall(rule.template)):
            return ""
        return PLACEHOLDER.sub(lambda match: row[match[1]], rule.template)
    text = row.get(rule.key or "", "")
    if rule.sub_key is not None:
        text = sub_value(text, rule.sub_key)
    return text if rule.matches is None else cut_out(rule, text)


def cut_out(rule: ValueRule | ScoreRule | SiteRule, text: str) -> str:
    """Return the part of a value that ``matches`` finds: its first group, or the whole match."""
    if rule.matches is None:
        return text
    match = rule.matches.search(text)
    if match is None:
        return ""
    return (match[1] or "") if match.re.groups else match[0]
