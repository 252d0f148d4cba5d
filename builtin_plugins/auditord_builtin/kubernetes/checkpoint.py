"""How far each namespace has been read."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

Json = Any  # Any: whatever JSON can hold


class Position(msgspec.Struct, frozen=True):
    """How far one scope has been read.

    Args:
        at: all that had happened until then is known.
        version: the resource version from which a watch goes on; None: it is too old, and the scope must be listed.
        selector: what was selected; with another one the scope must be listed as well.
    """

    at: datetime
    version: str | None
    selector: str = ""


class Checkpoint(msgspec.Struct, frozen=True):
    """How far everything has been read.

    Args:
        since: pods that ended before are none of our business.
        scopes: by namespace, or ``*`` for all.
    """

    since: datetime
    scopes: dict[str, Position] = {}

    @classmethod
    def restored(cls, stored: Json, since: datetime) -> "Checkpoint":
        """The one that was stored, or the first one."""
        return cls(since) if stored is None else msgspec.convert(stored, cls)

    def version(self, scope: str, selector: str) -> str | None:
        """From where a watch of a scope goes on; None if it must be listed."""
        position = self.scopes.get(scope)
        return position.version if position is not None and position.selector == selector else None

    def known_until(self, *scopes: str) -> datetime:
        """When everything in one of these scopes was known for the last time."""
        return max((self.scopes[scope].at for scope in scopes if scope in self.scopes), default=self.since)

    def moved(self, scope: str, position: Position) -> "Checkpoint":
        """With a scope read so far."""
        return Checkpoint(self.since, {**self.scopes, scope: position})

    def only(self, scopes: tuple[str, ...]) -> "Checkpoint":
        """Without scopes that are not read any more."""
        return Checkpoint(self.since, {name: place for name, place in self.scopes.items() if name in scopes})

    def to_json(self) -> Mapping[str, Json]:
        """To be stored."""
        stored: Mapping[str, Json] = msgspec.to_builtins(self)
        return stored
