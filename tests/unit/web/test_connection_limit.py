"""At the limit of connections the one that has idled longest is closed, and the newcomer gets in."""

import resource
from dataclasses import dataclass, field

import pytest

from auditord.web.connections import RESERVE, ConnectionLimit, limit_of_connections
from auditord.web.proxies import Proxies


@dataclass(eq=False)
class Connection:
    """A connection that remembers whether it was closed."""

    address: str
    may_go: bool = True
    closed: list[bool] = field(default_factory=list[bool])

    def give_up(self) -> None:
        self.closed.append(True)


def entered(limit: ConnectionLimit, *connections: Connection) -> list[bool]:
    """The connections that are closed once all have entered."""
    for each in connections:
        limit.enter(each)
    return [bool(each.closed) for each in connections]


def test_the_longest_idle_one_goes() -> None:
    first, second = Connection("a"), Connection("a")
    counted = list[int]()
    limit = ConnectionLimit(4, lambda: counted.append(1))
    assert entered(limit, first, second) == [False, False]
    limit.note_traffic(first)
    assert entered(limit, Connection("a")) == [False]
    assert (bool(first.closed), bool(second.closed)) == (False, True)
    assert len(limit) == 2
    assert counted == [1]


def test_no_address_has_more_than_half() -> None:
    limit = ConnectionLimit(4)
    assert entered(limit, *(Connection("a") for _ in range(3))) == [True, False, False]
    assert entered(limit, Connection("b"), Connection("c")) == [False, False]


def test_a_proxy_may_have_all_but_gives_up_its_own_for_others() -> None:
    limit = ConnectionLimit(4, is_proxy=Proxies(["192.0.2.7"], "x-forwarded").is_named)
    behind = [Connection("192.0.2.7") for _ in range(4)]
    assert entered(limit, *behind) == [False] * 4
    assert entered(limit, Connection("192.0.2.8")) == [False]
    assert [bool(each.closed) for each in behind] == [True, False, False, False]
    assert len(limit) == 4


def test_where_the_server_is_at_work_nobody_goes_but_the_newcomer() -> None:
    limit = ConnectionLimit(4)
    busy = [Connection("a", may_go=False), Connection("a", may_go=False)]
    assert entered(limit, *busy, Connection("a")) == [False, False, True]
    assert len(limit) == 2


def test_who_has_most_gives_up_one() -> None:
    limit = ConnectionLimit(5)
    assert entered(limit, *(Connection("a") for _ in range(2)), *(Connection("b") for _ in range(2))) == [False] * 4
    assert entered(limit, Connection("c"), Connection("d")) == [False, False]
    assert len(limit) == 5


def test_who_leaves_is_counted_no_more_and_only_once() -> None:
    limit = ConnectionLimit(4)
    first, second = Connection("a"), Connection("a")
    entered(limit, first, second)
    limit.leave(first)
    limit.leave(first)
    limit.note_traffic(first)
    assert entered(limit, Connection("a")) == [False]
    assert not second.closed


@pytest.mark.parametrize(
    ("soft", "wanted", "limit"),
    [(65_536, 1_000, 1_000), (1_024, 1_000, 1_024 - RESERVE), (256, 1_000, 128), (resource.RLIM_INFINITY, 5, 5)],
)
def test_the_process_keeps_descriptors_for_itself(
    monkeypatch: pytest.MonkeyPatch, soft: int, wanted: int, limit: int
) -> None:
    def limits(_kind: int) -> tuple[int, int]:
        return soft, soft

    monkeypatch.setattr(resource, "getrlimit", limits)
    assert limit_of_connections(wanted) == limit
