"""A pytest plugin: what the tests with a real Slurm need is begun once in a session, as early as possible.

Whoever knows all tests begins it: the only process, or the one that hands the tests out to others (pytest-xdist).
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.handing_over import FOLDER, hand_over
from tests.slurm_jobs import SUBMITTED, missing_slurm, submit_all
from tests.slurm_notes import NOTED, NotedJobs, begin_noting, end_noting

_FILES: Final = "real_slurm"
"""The group of tests with a Slurm: the process that hands the tests out knows their names alone."""

_BEFORE: Final = 0.3
"""The share of all tests that begin before these, whose jobs take minutes."""


def _needs_slurm(test: str) -> bool:
    return _FILES in test.split("::", maxsplit=1)[0]


class _Session:
    """The services that this process has begun for the session."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="auditord-session-"))
        self.noted: list[NotedJobs] = []
        self.work: Thread | None = None

    def begin(self, tests: Sequence[str]) -> None:
        """Submit jobs for these tests, beside everything else."""
        if tests and self.work is None and missing_slurm() is None:
            self.work = Thread(target=self._prepare, args=(any("/epilog/" in test for test in tests),))
            self.work.start()

    def _prepare(self, notes: bool) -> None:  # noqa: FBT001 a thread's argument
        if notes:  # first, so that the jobs are noted, too
            hand_over(NOTED, self._note)
        hand_over(SUBMITTED, submit_all)

    def _note(self) -> NotedJobs:
        self.noted.append(begin_noting())
        return self.noted[0]

    def end(self) -> None:
        """Take everything away."""
        if self.work is not None:
            self.work.join()
        for each in self.noted:
            end_noting(each)
        shutil.rmtree(self.folder, ignore_errors=True)


_begun = pytest.StashKey[_Session]()


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of the session, unless another process has."""
    if not hasattr(config, "workerinput"):
        config.stash[_begun] = _Session()
        os.environ[FOLDER] = str(config.stash[_begun].folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests with a Slurm behind most others."""
    behind = [item for item in items if _needs_slurm(item.nodeid)]
    others = [item for item in items if not _needs_slurm(item.nodeid)]
    if strays := [item.nodeid for item in others if item.get_closest_marker("slurm")]:
        raise pytest.UsageError(f"tests with a Slurm live in files with {_FILES} in their names: {strays}")
    place = int(len(others) * _BEFORE)
    items[:] = [*others[:place], *behind, *others[place:]]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin, where this is the only process."""
    begun = session.config.stash.get(_begun, None)
    if begun is not None and not session.config.option.collectonly:
        begun.begin([item.nodeid for item in session.items if _needs_slurm(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: WorkerController, ids: Sequence[str]) -> None:
    """Begin, where this process hands out the tests."""
    node.config.stash[_begun].begin([test for test in ids if _needs_slurm(test)])


_TOGETHER: Final = (
    *("acceptance/page/", "acceptance/tardis/", "acceptance/paper/test_drones", "acceptance/test_third_party"),
    *("acceptance/test_tutorial", "packaging/test_container_image", "packaging/test_distributions"),
)
"""Files whose tests share what is dear to make, such as an image of a container."""


class _OneSlurm(LoadScopeScheduling):  # type: ignore[misc] # pytest-xdist has no types
    """Gives a process all tests with a Slurm, and to each process whole files, whose tests share fixtures.

    Slow tests are handed out one by one, but for files whose tests share what is dear. To do so with thousands of
    quick ones would take more time than many of them: the scheduler goes through all that it has handed out.
    """

    def _split_scope(self, nodeid: str) -> str:
        if _needs_slurm(nodeid):
            return _FILES
        file = nodeid.partition("::")[0]
        is_whole = "not slow" in str(self.config.getoption("-m")) or any(each in file for each in _TOGETHER)
        return file if is_whole else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _OneSlurm:
    """Keep the order of the tests, too."""
    config.option.loadscopereorder = False
    return _OneSlurm(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Take everything away."""
    begun = config.stash.get(_begun, None)
    if begun is not None:
        begun.end()
