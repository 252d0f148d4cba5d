"""Kinds that change every record before it is stored, for example pseudonyms for users."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeAlias, TypeVar

import msgspec

from auditord_hookspecs.config import InstanceConfig
from auditord_hookspecs.proposals import Detect
from auditord_hookspecs.records import Record

T = TypeVar("T", bound=InstanceConfig)

Transform: TypeAlias = Callable[[Record], Record]
"""A function that returns the record to store. It must not change the id or the times, which identify the run. It must
be fast and deterministic: the same record always gives the same result. It may raise :class:`InvalidRecord`. The host
calls it once for each record. For a correction by hand, the host takes only the corrected parts from the result."""


class TransformKind(msgspec.Struct, Generic[T], frozen=True):
    """A kind that changes every record before it is stored, from any origin.

    Args:
        name: the value of ``kind:`` in the configuration.
        config: the model of an instance's section.
        make: returns an instance's function from a record to the changed record; called once, when the daemon starts.
        detect: returns the questions of ``auditord init`` for this kind; see :mod:`auditord_hookspecs.proposals`. If
            the answers give no options, no instance is written.
        labels: returns the names of the labels that an instance adds to records. If no enabled collector or transform
            makes a label that a plugin needs, ``auditord config check`` says so. None: unknown.
    """

    name: str
    config: type[T]
    make: Callable[[T], Transform]
    detect: Detect | None = None
    labels: Callable[[T], Iterable[str]] | None = None
