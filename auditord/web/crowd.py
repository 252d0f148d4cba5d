"""The connections of all clients: at their limit, the one that has been of no use for the longest time is closed.

A new client always gets in, so that ``/health_check`` is answered however many connections others keep. In ordinary
times nobody is closed: clients keep idle connections for up to 90 s and do not repeat a request that is lost with one.
"""

import resource
from collections import Counter
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
    def progress(self) -> float:
        """When the last bytes came or went."""
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
        self._members: set[Member] = set()
        self._counts = Counter[str]()

    def __len__(self) -> int:
        return len(self._members)

    def enter(self, member: Member) -> None:
        """Count a new connection, and close one where there are too many."""
        self._members.add(member)
        self._counts[member.address] += 1
        if self._counts[member.address] > max(1, self._most // 2):
            self._close_one_of(member.address, member)
        elif len(self._members) > self._most:
            (address, _), *_ = self._counts.most_common(1)
            self._close_one_of(address, member)

    def leave(self, member: Member) -> None:
        """Forget a connection; one that is not known does no harm."""
        if member in self._members:
            self._members.remove(member)
            self._counts[member.address] -= 1
            if not self._counts[member.address]:
                del self._counts[member.address]

    def _close_one_of(self, address: str, newcomer: Member) -> None:
        idle = [each for each in self._members if each.address == address and each.may_go]
        unwanted = min(idle, key=lambda each: each.progress, default=newcomer)
        self.leave(unwanted)
        self._closed()
        unwanted.give_up()


def limit_of_connections(wanted: int) -> int:
    """Connections that the process may keep, of those that the configuration wants."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(soft - RESERVE, soft // 2))
