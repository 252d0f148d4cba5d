"""Changing records on their way in: pseudonyms for users, names of sites as they are today."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from auditord_hookspecs.config import InstanceConfig
from auditord_hookspecs.records import Record

T = TypeVar("T", bound=InstanceConfig)

Transform: TypeAlias = Callable[[Record], Record]
"""A record as it is to be kept. It changes neither id nor times, which say what is the same run; it gives the same for
the same record tomorrow; and what it gave it leaves alone, since a record may pass several times. It may raise
:class:`InvalidRecord`, and does nothing that takes time."""


@dataclass(frozen=True)  # no slots: TransformKind[Config](…) would raise TypeError
class TransformKind(Generic[T]):
    """A kind of change that every record meets before it is kept, wherever it comes from.

    Args:
        name: what ``kind:`` says in the configuration.
        config: the model of an instance's section.
        make: what an instance does; called once, when the daemon starts.
    """

    name: str
    config: type[T]
    make: Callable[[T], Transform]
