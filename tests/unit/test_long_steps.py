"""Migrations of SQLite within one long step: they say that they go on, and end when they are asked to."""

import logging
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import from_thread, to_thread

from auditord.database.migrations import SAID_EVERY, Migrations, Watch, migrate, watch_statements
from auditord.errors import MigrationInterrupted

FIRST = "PRAGMA application_id = 7;\nCREATE TABLE a (n INTEGER);\n"
ENDLESS = """CREATE TABLE b (n INTEGER);
INSERT INTO b WITH RECURSIVE c(n) AS (SELECT begun() UNION ALL SELECT n + 1 FROM c) SELECT n FROM c;
"""


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)) as connection:
        migrate(connection, Migrations(7, [FIRST]), Path("x.db"))
        yield connection


def endless(connection: sqlite3.Connection, begun: Callable[[], object]) -> None:
    def first_number() -> int:
        begun()
        return 0

    connection.create_function("begun", 0, first_number)
    migrate(connection, Migrations(7, [FIRST, ENDLESS]), Path("x.db"))


def nothing_has_changed(connection: sqlite3.Connection) -> bool:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    return tables == ["a"] and connection.execute("PRAGMA user_version").fetchone() == (1,)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_the_step(connection: sqlite3.Connection, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(MigrationInterrupted, match="nothing has changed"):
        endless(connection, partial(os.kill, os.getpid(), number))
    assert nothing_has_changed(connection)
    assert signal.getsignal(number) is before


@pytest.mark.anyio
async def test_so_does_the_end_of_the_task(connection: sqlite3.Connection) -> None:
    with anyio.CancelScope() as scope, pytest.raises(MigrationInterrupted):
        await to_thread.run_sync(endless, connection, lambda: from_thread.run_sync(scope.cancel))
    assert nothing_has_changed(connection)


def test_it_says_that_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    moments = iter([0.0, 10.0, 10.0 + SAID_EVERY - 1, 10.0 + SAID_EVERY, 11.0 + SAID_EVERY])
    watch = Watch(lambda: next(moments))
    watch.begin("step 2")
    with caplog.at_level(logging.INFO):
        assert [watch() for _ in range(3)] == [False, False, False]
    assert [record.getMessage() for record in caplog.records] == ["step 2: still running after 30 s"]


def test_other_faults_are_what_they_were(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"), watch_statements(connection, Watch()):
        connection.execute("SELECT * FROM absent")
