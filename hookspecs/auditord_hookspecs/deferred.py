"""Declarations whose implementation is imported on first use.

Every command imports every hook module. A module that imports its models and functions inside a function does not slow
down other commands::

    @hookimpl
    def auditord_collectors():
        yield Deferred("printers", _printers)


    def _printers() -> CollectorKind[PrintersConfig]:
        from auditord_printers.collecting import PRINTERS

        return PRINTERS
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

D_co = TypeVar("D_co", covariant=True)


class Deferred(msgspec.Struct, Generic[D_co], frozen=True):
    """A kind or a command that is declared by name, and imported on first use.

    Args:
        name: the name of the kind or command.
        load: imports and returns it; it must have this name.
        help: a line about a command for ``auditord --help``, which imports no command.
    """

    name: str
    load: Callable[[], D_co]
    help: str = ""
