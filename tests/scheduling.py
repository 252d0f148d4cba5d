"""A pytest plugin: the order of tests, and the processes of pytest-xdist that they go to."""

from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_SLURM: Final = "real_slurm"
"""In the names of files whose tests need a Slurm: the process that hands out tests knows their names alone."""

_BEFORE: Final = 0.3
"""The share of quick tests that begin before those with a Slurm, whose jobs take minutes."""

_TOGETHER: Final = (
    *("acceptance/page/", "acceptance/tardis/", "acceptance/paper/test_drones", "acceptance/test_third_party"),
    *("acceptance/test_tutorial", "lake/test_clusters", "packaging/test_container_image"),
    "packaging/test_distributions",
)
"""Files whose tests share what is dear to make, such as an image of a container or a cluster of Spark."""

_LONGEST: Final = (
    *(_SLURM, "packaging/test_container_image", "packaging/test_rpm", "packaging/test_debian", "lake/test_clusters"),
    *("attacks/test_costly_readers", "kubernetes/test_restarts_seen_late", "store/test_rollups"),
    *("lake/test_object_store", "acceptance/test_years", "integration/test_tools", "lake/test_lake_kills"),
    *("acceptance/test_drain", "acceptance/test_third_party", "ingest/test_pairing", "packaging/test_distributions"),
)
"""Slow files, by the time that their longest work takes: one that begins last would be waited for by all processes."""


def needs_slurm(test: str) -> bool:
    """Return whether this is the name of a test with a Slurm."""
    return _SLURM in test.split("::", maxsplit=1)[0]


def _is_quick(config: pytest.Config) -> bool:
    return "not slow" in str(config.getoption("-m"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest of slow tests; put quick ones with a Slurm behind some others."""
    if strays := [item.nodeid for item in items if item.get_closest_marker("slurm") and not needs_slurm(item.nodeid)]:
        raise pytest.UsageError(f"tests with a Slurm live in files with {_SLURM} in their names: {strays}")
    if _is_quick(config):
        behind = [item for item in items if needs_slurm(item.nodeid)]
        others = [item for item in items if not needs_slurm(item.nodeid)]
        place = int(len(others) * _BEFORE)
        items[:] = [*others[:place], *behind, *others[place:]]
    else:
        items.sort(key=lambda item: _rank(item.nodeid))


def _rank(test: str) -> int:
    """Return the place of a test, a file or a group by decreasing time."""
    return next((rank for rank, name in enumerate(_LONGEST) if name in test), len(_LONGEST))


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc] # pytest-xdist has no types
    """Gives a process all tests with a Slurm, and to each process whole files, whose tests share fixtures.

    Slow tests are handed out one by one, but for files whose tests share what is dear. To do so with thousands of
    quick ones would take more time than many of them: the scheduler goes through all that it has handed out.
    """

    def _split_scope(self, nodeid: str) -> str:
        if needs_slurm(nodeid):
            return _SLURM
        file = nodeid.partition("::")[0]
        is_whole = _is_quick(self.config) or any(each in file for each in _TOGETHER)
        return file if is_whole else nodeid

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Let a short test wait behind a long one, since a process is given its next test before it ends this one."""
        last = next(reversed(self.assigned_work[node]), "")
        if not _is_quick(self.config) and _rank(last) < len(_LONGEST):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduling:
    """Keep the order of the tests, too."""
    config.option.loadscopereorder = False
    return _Scheduling(config, log)
