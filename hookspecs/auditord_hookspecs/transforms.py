"""Changes of records before they are kept: pseudonyms for users, current names of sites."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from auditord_hookspecs.config import InstanceConfig
from auditord_hookspecs.proposals import Detect
from auditord_hookspecs.records import Record

T = TypeVar("T", bound=InstanceConfig)

Transform: TypeAlias = Callable[[Record], Record]
"""A record as it is to be kept. It changes neither id nor times, which say what is the same run, and it gives the same
for the same record tomorrow. It is called once for each record; of a correction by hand, only what that changes of the
stored record is taken from it. It may raise :class:`InvalidRecord`, and does nothing that takes time."""


@dataclass(frozen=True)  # no slots: TransformKind[Config](…) would raise TypeError
class TransformKind(Generic[T]):
    """A kind of change that every record meets before it is kept, wherever it comes from.

    Args:
        name: what ``kind:`` says in the configuration.
        config: the model of an instance's section.
        make: what an instance does; called once, when the daemon starts.
        detect: the questions of ``auditord init`` about it; see :mod:`auditord_hookspecs.proposals`. Answers that
            make no options make no instance.
    """

    name: str
    config: type[T]
    make: Callable[[T], Transform]
    detect: Detect | None = None
