"""Kinds that change every record before it is stored, for example pseudonyms for users."""

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import msgspec

from auditord_hookspecs.config import InstanceConfig
from auditord_hookspecs.proposals import Detect
from auditord_hookspecs.records import Record

T = TypeVar("T", bound=InstanceConfig)

Transform: TypeAlias = Callable[[Record], Record]
"""A function that returns the record to store. It changes neither the id nor the times, which identify the run, and it
is deterministic: it returns the same for the same record tomorrow. The host calls it once for each record. Of a
correction by hand, the host takes only the changes to the stored record from the result. The function may raise
:class:`InvalidRecord`, and must be fast."""


class TransformKind(msgspec.Struct, Generic[T], frozen=True):
    """A kind that changes every record before it is stored, from any origin.

    Args:
        name: what ``kind:`` says in the configuration.
        config: the model of an instance's section.
        make: returns an instance's function from a record to the changed record; called once, when the daemon starts.
        detect: the questions of ``auditord init`` about it; see :mod:`auditord_hookspecs.proposals`. Answers that
            make no options make no instance.
    """

    name: str
    config: type[T]
    make: Callable[[T], Transform]
    detect: Detect | None = None
