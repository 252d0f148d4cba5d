"""Routes by their paths: a tree of segments, in which one in braces matches anything."""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Paths(Generic[T]):
    """What lies at a path, by method, and everything beneath it.

    Args:
        methods: what answers here, by method.
        named: what lies beneath, by the next segment.
        unnamed: what lies beneath where the next segment may be anything; what is named goes first.
    """

    methods: MutableMapping[str, T] = field(default_factory=dict[str, T])
    named: "MutableMapping[str, Paths[T]]" = field(default_factory=dict[str, "Paths[T]"])
    unnamed: "Paths[T] | None" = None

    def at(self, segments: Sequence[str]) -> "Paths[T]":
        """The place of a path, made if it is not there; ``{name}`` is a segment that may be anything."""
        if not segments:
            return self
        first, *rest = segments
        if not first.startswith("{"):
            return self.named.setdefault(first, Paths[T]()).at(rest)
        self.unnamed = self.unnamed or Paths[T]()
        return self.unnamed.at(rest)

    def find(self, segments: Sequence[str]) -> MutableMapping[str, T]:
        """What answers at a path, by method; nothing if there is no such path."""
        if not segments:
            return self.methods
        first, *rest = segments
        for below in (self.named.get(first), self.unnamed):
            if below is not None and (found := below.find(rest)):
                return found
        return {}
