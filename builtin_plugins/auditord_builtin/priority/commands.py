"""The commands that set priorities: templates become argument vectors, and no shell ever sees them."""

import re
import shlex
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Final

from auditord_builtin.priority.config import PriorityConfig
from auditord_builtin.priority.usage import Usage

_PLACEHOLDER: Final = re.compile(r"\{(priority|resources?|group|[1-9]\d*)\}", re.ASCII)


def all_commands(config: PriorityConfig, usage: Usage, priorities: dict[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Each group and the argument vector of a command for it, command by command as with AUDITOR."""
    for template in config.commands:
        words = shlex.split(template)
        for group, parameters in config.group_mapping.items():
            values = {
                "priority": str(priorities[group]),
                "resource": printed(usage[group]),
                "resources": printed(usage[group]),
                "group": group,
                **{str(place): parameter for place, parameter in enumerate(parameters, start=1)},
            }
            yield group, [_filled(word, values) for word in words]


def _filled(word: str, values: dict[str, str]) -> str:
    """In one pass: braces in a group's name or a parameter are text. A number that stands for nothing stays."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), word)


def printed(usage: Fraction) -> str:
    """As AUDITOR prints it: the shortest decimal that is read as the same 64-bit float, without exponent."""
    text = format(Decimal(repr(float(usage))), "f")
    return text.removesuffix(".0")
