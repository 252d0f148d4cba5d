"""A pytest plugin: what the tests with a real Slurm need is begun once in a session, as early as possible.

Whoever knows all tests begins it: the only process, or the one that hands the tests out to others (pytest-xdist).
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import pytest
from xdist.workermanage import WorkerController

from tests.handing_over import FOLDER, hand_over
from tests.scheduling import needs_slurm
from tests.slurm_jobs import SUBMITTED, missing_slurm, submit_all
from tests.slurm_notes import NOTED, NotedJobs, begin_noting, end_noting


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


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin, where this is the only process."""
    begun = session.config.stash.get(_begun, None)
    if begun is not None and not session.config.option.collectonly:
        begun.begin([item.nodeid for item in session.items if needs_slurm(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: WorkerController, ids: Sequence[str]) -> None:
    """Begin, where this process hands out the tests."""
    node.config.stash[_begun].begin([test for test in ids if needs_slurm(test)])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Take everything away."""
    begun = config.stash.get(_begun, None)
    if begun is not None:
        begun.end()
