"""The connections of all clients: at their limit, the one that has been of no use for the longest time is closed.

A new client always gets in, so that ``/health_check`` is answered however many connections others keep. In ordinary
times nobody is closed: clients keep idle connections for up to 90 s and do not repeat a request that is lost with one.
"""

import resource
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

RESERVE: Final = 384
"""Descriptors that clients do not get: files, databases, programs, senders, the control socket, and what is accepted
before the first of too many is closed."""

_MANY: Final = 1_000_000


class Member(Protocol):
    """A connection."""

    @property
    def address(self) -> str:
        """The client's address; empty for a unix socket."""
        ...

    @property
    def may_go(self) -> bool:
        """Whether the client is awaited, not the server."""
        ...

    def give_up(self) -> None:
        """Close it at once."""
        ...


class Crowd:
    """Connections that share a limit; no address has more than half of them.

    Args:
        most: so many connections.
        closed: called whenever one is closed for another.
    """

    def __init__(self, most: int = _MANY, closed: Callable[[], None] = lambda: None) -> None:
        self._most = most
        self._closed = closed
        self._members: dict[str, OrderedDict[Member, None]] = {}
        """By address, the one whose last bytes came or went longest ago first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, member: Member) -> None:
        """Count a new connection, and close one where there are too many."""
        neighbours = self._members.setdefault(member.address, OrderedDict())
        neighbours[member] = None
        self._count += 1
        if len(neighbours) > max(1, self._most // 2):
            self._close_one_of(neighbours)
        elif self._count > self._most:
            self._close_one_of(max(self._members.values(), key=len))

    def moved(self, member: Member) -> None:
        """Note that bytes of a connection came or went."""
        neighbours = self._members.get(member.address)
        if neighbours is not None and member in neighbours:
            neighbours.move_to_end(member)

    def leave(self, member: Member) -> None:
        """Forget a connection; one that is not known does no harm."""
        neighbours = self._members.get(member.address)
        if neighbours is None or member not in neighbours:
            return
        del neighbours[member]
        self._count -= 1
        if not neighbours:
            del self._members[member.address]

    def _close_one_of(self, members: "OrderedDict[Member, None]") -> None:
        newest = next(reversed(members))
        unwanted = next((each for each in members if each.may_go), newest)
        self.leave(unwanted)
        self._closed()
        unwanted.give_up()


def limit_of_connections(wanted: int) -> int:
    """Connections that the process may keep, of those that the configuration wants."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(soft - RESERVE, soft // 2))
