"""Numbers and times from the texts that batch systems print: a text is missing, or a value, or a fault with a reason.

The forms are those of Slurm's ``sacct`` (``man sacct``, *Job Accounting Fields*) and of AUDITOR's ``key_type``.
"""

import re
from datetime import UTC, datetime
from decimal import Decimal

from auditord_hookspecs.errors import InvalidRecord

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
_EPOCH = re.compile(r"[0-9]{1,11}")
_PREFIXES = "KMGTPE"


def is_missing(text: str) -> bool:
    """Tell a text that stands for "nothing known": empty, ``Unknown``, ``INVALID``, ``16?``, NO_VAL and the like."""
    stripped = text.strip()
    return stripped in _SENTINELS or (stripped.endswith("?") and _UNKNOWN_CODE.fullmatch(stripped) is not None)


def parse_number(text: str) -> Decimal:
    """A plain number: ``12``, ``-3``, ``1.50``.

    Raises:
        InvalidRecord: the text is something else.
    """
    if _NUMBER.fullmatch(text.strip()) is None:
        raise InvalidRecord(f"{text[:60]!r} is not a number")
    return Decimal(text.strip())


def parse_size(text: str) -> Decimal:
    """Bytes from ``412717056``, ``132384K``, ``1.5G``, ``4GiB``; the prefixes are powers of 1,024, as Slurm's are.

    Raises:
        InvalidRecord: the text is something else.
    """
    return _scaled(_SIZE.fullmatch(text.strip()), 1_024, text, "a size such as 2000M or 1.5G")


def parse_energy(text: str) -> Decimal:
    """Joules from ``512``, ``1.23K``; the prefixes are powers of 1,000, as Slurm's are for energy.

    Raises:
        InvalidRecord: the text is something else.
    """
    return _scaled(_ENERGY.fullmatch(text.strip()), 1_000, text, "an energy such as 512 or 1.23K")


def _scaled(match: "re.Match[str] | None", base: int, text: str, expected: str) -> Decimal:
    if match is None:
        raise InvalidRecord(f"{text[:60]!r} is not {expected}")
    power = _PREFIXES.index(match[2].upper()) + 1 if match[2] else 0
    return Decimal(match[1]) * Decimal(base) ** power


def parse_duration(text: str) -> Decimal:
    """Seconds, with their fraction, from ``[[D-]H:]MM:SS[.f]`` or a plain number of seconds.

    Raises:
        InvalidRecord: the text is something else.
    """
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped) is not None:
        return Decimal(stripped)
    match = _CLOCK.fullmatch(stripped)
    if match is None:
        raise InvalidRecord(f"{text[:60]!r} is not a duration such as 1-02:03:04.567 or 03:04.567")
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60 + Decimal(match[4])


def parse_instant(text: str) -> datetime:
    """An instant in UTC from seconds since 1970 or ISO 8601; a time without zone is UTC.

    Raises:
        InvalidRecord: the text is something else, or no date that exists.
    """
    stripped = text.strip()
    try:
        if _EPOCH.fullmatch(stripped) is not None:
            return datetime.fromtimestamp(int(stripped), UTC)
        moment = datetime.fromisoformat(stripped)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRecord(f"{text[:60]!r} is not a time such as 1700000000 or 2023-11-14T22:13:20Z") from error


def sub_value(text: str, key: str) -> str:
    """The value under a key of a list such as ``cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=2G``; empty if it is not there.

    A typed resource is listed twice, as ``gres/gpu:a100`` and within ``gres/gpu``; where only typed entries are there,
    their sum is the value. So ``gres/gpu`` counts each GPU once.
    """
    pairs = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if key in pairs:
        return pairs[key]
    typed = [parse_number(value) for name, value in pairs.items() if name.startswith(f"{key}:")]
    return f"{sum(typed):f}" if typed else ""
