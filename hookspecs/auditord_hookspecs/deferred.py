"""Declarations that are made on first use.

Every command imports every hook module. A module that imports its models and its work inside a function does not slow
down commands that do not use it::

    @hookimpl
    def auditord_collectors():
        yield Deferred("printers", _printers)


    def _printers() -> CollectorKind[PrintersConfig]:
        from auditord_printers.collecting import PRINTERS

        return PRINTERS
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

D_co = TypeVar("D_co", covariant=True)


@dataclass(frozen=True)  # no slots: Deferred[CollectorKind[Config]](…) would raise TypeError
class Deferred(Generic[D_co]):
    """A kind or a command that hook modules declare by its name alone.

    Args:
        name: of the kind, or of the command.
        load: imports it and returns it, under that name.
        help: one line about a command, for ``auditord --help``, which imports none.
    """

    name: str
    load: Callable[[], D_co]
    help: str = ""
