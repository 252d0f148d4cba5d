"""At the limit of connections the one that has idled longest is closed, and the newcomer gets in."""

import resource
from dataclasses import dataclass, field

import pytest

from auditord.web.connections import RESERVE, ConnectionLimit, limit_of_connections


@dataclass(eq=False)
class Connection:
    """A connection that remembers whether it was closed."""

    address: str
    may_go: bool = True
    closed: list[bool] = field(default_factory=list[bool])

    def give_up(self) -> None:
        self.closed.append(True)


def entered(crowd: ConnectionLimit, *connections: Connection) -> list[bool]:
    """Which of them are closed once all have entered."""
    for each in connections:
        crowd.enter(each)
    return [bool(each.closed) for each in connections]


def test_the_longest_idle_one_goes() -> None:
    first, second = Connection("a"), Connection("a")
    counted = list[int]()
    crowd = ConnectionLimit(4, lambda: counted.append(1))
    assert entered(crowd, first, second) == [False, False]
    crowd.moved(first)
    assert entered(crowd, Connection("a")) == [False]
    assert (bool(first.closed), bool(second.closed)) == (False, True)
    assert len(crowd) == 2
    assert counted == [1]


def test_no_address_has_more_than_half() -> None:
    crowd = ConnectionLimit(4)
    assert entered(crowd, *(Connection("a") for _ in range(3))) == [True, False, False]
    assert entered(crowd, Connection("b"), Connection("c")) == [False, False]


def test_where_the_server_is_at_work_nobody_goes_but_the_newcomer() -> None:
    crowd = ConnectionLimit(4)
    busy = [Connection("a", may_go=False), Connection("a", may_go=False)]
    assert entered(crowd, *busy, Connection("a")) == [False, False, True]
    assert len(crowd) == 2


def test_who_has_most_gives_up_one() -> None:
    crowd = ConnectionLimit(5)
    assert entered(crowd, *(Connection("a") for _ in range(2)), *(Connection("b") for _ in range(2))) == [False] * 4
    assert entered(crowd, Connection("c"), Connection("d")) == [False, False]
    assert len(crowd) == 5


def test_who_leaves_is_counted_no_more_and_only_once() -> None:
    crowd = ConnectionLimit(4)
    first, second = Connection("a"), Connection("a")
    entered(crowd, first, second)
    crowd.leave(first)
    crowd.leave(first)
    crowd.moved(first)
    assert entered(crowd, Connection("a")) == [False]
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
