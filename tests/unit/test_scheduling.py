"""The longest of slow tests begin first, what waits behind them is short, and no leg imports the files of the other."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import pytest
from xdist.remote import Producer
from xdist.workermanage import WorkerController

from tests.scheduling import pytest_xdist_make_scheduler

CONFTEST: Final = Path(__file__).parents[1] / "conftest.py"
SLOW_TEST: Final = "@pytest.mark.slow\ndef test_slow() -> None: ...\n"

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


@pytest.fixture
def tree(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with the tests' conftest.py, without the plugins that it names."""
    before, _, rest = CONFTEST.read_text().partition("pytest_plugins = [")
    pytester.makeconftest(before + rest.partition("\n]\n")[2])
    pytester.makeini("[pytest]\nmarkers =\n  slow\n  benchmark")
    return pytester


def test_the_second_leg_imports_only_files_that_can_have_slow_tests(tree: pytest.Pytester) -> None:
    tree.makepyfile(
        **{
            "test_marked": f"import pytest\n{SLOW_TEST}",
            "test_quick": "raise AssertionError('imported')",
            "acceptance/test_by_place": "def test_slow() -> None: ...",
            "acceptance/test_daemon": "raise AssertionError('imported')",  # of the first leg
            "by_conftest/conftest": "import pytest\nSLOW = pytest.mark.slow",
            "by_conftest/below/test_marked": "import pytest\ndef test_quick() -> None: ...\n" + SLOW_TEST,
        }
    )
    result = tree.runpytest_subprocess("--import-mode=importlib", "-m", "slow and not benchmark")
    result.assert_outcomes(passed=3, deselected=1)


def test_the_first_leg_refuses_a_slow_test_that_the_second_would_not_find(tree: pytest.Pytester) -> None:
    tree.makepyfile(helper="import pytest\nDEAR = pytest.mark.slow")
    tree.makepyfile(test_helped="from helper import DEAR\n\n@DEAR\ndef test_slow() -> None: ...")
    result = tree.runpytest_subprocess("-m", "not slow")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*mark slow tests in their own file*test_helped.py*"])
