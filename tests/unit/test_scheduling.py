"""The longest of slow tests begin first, and what waits behind them is short."""

from argparse import Namespace
from collections.abc import Sequence
from typing import cast

import pytest
from xdist.remote import Producer
from xdist.workermanage import WorkerController

from tests.scheduling import pytest_xdist_make_scheduler

LONG = ["p/test_real_slurm.py::a", "p/test_real_slurm.py::b", *(f"store/test_rollups.py::{n}" for n in range(3))]
SHORT = [f"p/test_other.py::{number}" for number in range(6)]


class Config(Namespace):
    """As much of pytest's as the scheduler asks for."""

    def getoption(self, name: str) -> object:
        return {"-m": "slow"}[name]

    def getvalue(self, name: str) -> object:
        return {"tx": ["2*popen"]}[name]


class Node:
    """A process that notes what it is given."""

    shutting_down = False
    gateway = Namespace(id="gw")

    def __init__(self) -> None:
        self.given = list[str]()

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.given += [[*LONG, *SHORT][index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_short_test_waits_behind_a_long_one() -> None:
    config = cast("pytest.Config", Config(option=Namespace()))
    scheduler = pytest_xdist_make_scheduler(config, Producer("test", enabled=False))
    nodes = [Node(), Node()]
    for node in nodes:
        scheduler.add_node(cast("WorkerController", node))
    for node in nodes:
        scheduler.add_node_collection(cast("WorkerController", node), [*LONG, *SHORT])
    scheduler.schedule()
    assert [node.given for node in nodes] == [[*LONG[:2], SHORT[5]], [LONG[2], SHORT[4]]]
    scheduler.mark_test_complete(cast("WorkerController", nodes[1]), 2)
    assert nodes[1].given[2:] == [LONG[3]]
    scheduler.mark_test_complete(cast("WorkerController", nodes[1]), 9)
    assert nodes[1].given[3:] == [SHORT[3]]
