"""Declarations whose implementation is imported on first use.

Every command imports every hook module. A module that defers the import of its models and functions does not slow down
other commands::

    @hookimpl
    def auditord_collectors():
        yield Deferred.at("printers", "auditord_printers.collecting:PRINTERS")
"""

from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

import msgspec

D_co = TypeVar("D_co", covariant=True)


class Deferred(msgspec.Struct, Generic[D_co], frozen=True):
    """A kind or a command that is declared by name and imported on first use.

    Args:
        name: the name of the kind or command.
        load: imports and returns the kind or command, which must have this name.
        help: the line about a command in ``auditord --help``, which imports no commands.
    """

    name: str
    load: Callable[[], D_co]
    help: str = ""

    @classmethod
    def at(cls, name: str, place: str, help: str = "") -> "Deferred[Any]":  # noqa: A002 Any: of the kind
        """Declare the kind or command at a place such as ``auditord_printers.collecting:PRINTERS``."""
        return Deferred(name, partial(resolve_name, place), help)
