"""Sizes in bytes in the configuration, such as ``64MiB``.

pydantic's ByteSize is not used. It accepts fractions, bits, and ``64mb`` in any case, shows ``64.0MiB``, and names no
valid unit when it refuses one.
"""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_UNITS = {
    "": 1,
    "B": 1,
    "kB": 1_000,
    "KB": 1_000,
    "MB": 1_000**2,
    "GB": 1_000**3,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
_SIZE = re.compile(r"\s*(\d+)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_size(value: Any) -> Any:  # Any: the value in the file
    """Convert ``64MiB``, ``10 MB`` or ``4096`` to a number of bytes.

    Raises:
        ValueError: the unit is unknown, or there is no whole number.
    """
    if isinstance(value, bool):
        raise ValueError("a size is a number of bytes or a text such as 64MiB")  # noqa: TRY004 pydantic wants it
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"'{value}' is not a size: write a whole number with B, kB, MB, GB, KiB, MiB or GiB")
    return int(match[1]) * _UNITS[match[2]]


def format_size(size: int) -> str | int:
    """Return the shortest text that :func:`parse_size` reads back, or the number if no binary unit fits."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return size


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, when_used="json"),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["64MiB"]}),
]
