"""The SQLite files: group commit, errors, reading beside writing, migrations, closing."""

import asyncio
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final, NoReturn

import anyio
import pytest

from auditord.database import Database
from auditord.database import database as database_module
from auditord.database.connections import open_for_writing
from auditord.database.database import find_changes, find_damage, free_pages, give_room_back
from auditord.database.readers import Page, Query, take_page
from auditord.errors import SchemaMismatch, StoreDamaged, StoreUnavailable

FIRST = """\
-- Things. A semicolon; in a comment is no end.
PRAGMA application_id = 0x1234;
CREATE TABLE things (name TEXT PRIMARY KEY, size INTEGER) WITHOUT ROWID;
CREATE TRIGGER no_big_ones BEFORE INSERT ON things WHEN NEW.size > 1000000 BEGIN
    SELECT raise(ABORT, 'too big');
END;
"""
PACKAGE = "things_migrations"


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "packages" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "0001_things.sql").write_text(FIRST)
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    yield folder
    sys.modules.pop(PACKAGE, None)


@pytest.fixture
def path(tmp_path: Path, scripts: Path) -> Path:
    assert scripts.exists()
    return tmp_path / "things.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Database]:
    async with opened(path) as database:
        yield database


def _execute(connection: sqlite3.Connection, statement: str) -> None:
    connection.execute(statement).fetchall()


@asynccontextmanager
async def opened(path: Path, *, max_page_count: int | None = None) -> AsyncGenerator[Database, None]:
    database = Database.open(path, PACKAGE)
    try:
        if max_page_count is not None:  # as on a full disk
            await database.write(_execute, f"PRAGMA max_page_count = {max_page_count}")
        yield database
    finally:
        await database.close()


def insert(name: str, size: int = 1) -> Callable[[sqlite3.Connection], int]:
    def work(connection: sqlite3.Connection) -> int:
        return connection.execute("INSERT INTO things VALUES (?, ?)", (name, size)).rowcount

    return work


def names(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM things ORDER BY name")]


def take_three(cursor: sqlite3.Cursor) -> Page[str]:
    rows, is_last = take_page(cursor, 3)
    return Page([name for (name,) in rows], is_last)


def all_names(_: sqlite3.Connection) -> Query:
    return "SELECT name FROM things ORDER BY name", ()


async def outcomes_of(works: Iterable[Awaitable[int]]) -> list[int | BaseException]:
    return list(await asyncio.gather(*works, return_exceptions=True))


class Blocker:
    """Work that holds the writer until it is released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> None:
        assert connection.in_transaction
        self.entered.set()
        assert self.open.wait(10)

    async def reached(self) -> None:
        await asyncio.to_thread(self.entered.wait, 10)


@pytest.mark.anyio
async def test_what_is_written_is_read(database: Database) -> None:
    assert await database.write(insert("a")) == 1
    assert await database.read(names) == ["a"]


@pytest.mark.anyio
async def test_work_that_waits_shares_a_commit(database: Database) -> None:
    commits = 0

    def count(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    await database.write(lambda connection: connection.set_trace_callback(count))
    blocker = Blocker()
    held = database.submit(blocker)
    await blocker.reached()
    waiting = [database.submit(insert(f"{number:03}")) for number in range(100)]
    commits = 0
    blocker.open.set()
    await asyncio.gather(held, *waiting)
    assert commits == 2
    assert len(await database.read(names)) == 100


@pytest.mark.anyio
async def test_work_that_fails_is_undone_alone(database: Database) -> None:
    blocker = Blocker()
    held = database.submit(blocker)
    await blocker.reached()

    def insert_and_stumble(connection: sqlite3.Connection) -> int:
        insert("undone")(connection)
        raise ValueError("stumbled")

    works = [insert("a"), insert_and_stumble, insert("a"), insert("b", 2_000_000), insert("c", 2**63), insert("d")]
    waiting = [database.submit(work) for work in works]
    blocker.open.set()
    await held
    outcomes = await outcomes_of(waiting)
    kinds = [int, ValueError, sqlite3.IntegrityError, sqlite3.IntegrityError, OverflowError, int]
    assert [type(outcome) for outcome in outcomes] == kinds
    assert await database.read(names) == ["a", "d"]


@pytest.mark.anyio
async def test_a_caller_that_is_cancelled_takes_nothing_back(database: Database) -> None:
    blocker = Blocker()
    held = database.submit(blocker)
    await blocker.reached()
    leaving = asyncio.create_task(database.write(insert("left")))
    staying = asyncio.create_task(database.write(insert("stayed")))
    await asyncio.sleep(0)
    leaving.cancel()
    blocker.open.set()
    await asyncio.gather(held, staying)
    assert leaving.cancelled()
    assert await database.read(names) == ["left", "stayed"]


@pytest.mark.anyio
async def test_a_reader_cannot_write(database: Database) -> None:
    with pytest.raises(StoreUnavailable, match="may not write"):
        await database.read(insert("a"))


@pytest.mark.anyio
async def test_a_full_disk_stores_nothing_and_passes(path: Path) -> None:
    async with opened(path, max_page_count=16) as database:
        stored: list[str] = []

        async def store_many() -> None:
            for number in range(100):
                await database.write(insert(f"{number:03}" + "x" * 1000))
                stored.append(f"{number:03}" + "x" * 1000)

        with pytest.raises(StoreUnavailable, match=r"things\.db is not available: there is no room"):
            await store_many()
        assert stored
        assert await database.read(names) == stored
        await database.write(lambda connection: connection.execute("PRAGMA max_page_count = 1000000").fetchall())
        await database.write(insert("z"))
        assert await database.read(names) == [*stored, "z"]


@pytest.mark.anyio
async def test_all_who_share_a_lost_transaction_get_the_error(path: Path) -> None:
    async with opened(path, max_page_count=16) as database:
        blocker = Blocker()
        held = database.submit(blocker)
        await blocker.reached()
        waiting = [database.submit(insert(f"{number:03}" + "x" * 1000)) for number in range(100)]
        blocker.open.set()
        await held
        outcomes = await outcomes_of(waiting)
        stored = await database.read(names)
        assert sum(outcome == 1 for outcome in outcomes) == len(stored)
        assert {type(outcome) for outcome in outcomes} == {int, StoreUnavailable}


@pytest.mark.anyio
async def test_a_lock_that_another_process_holds_is_named(path: Path) -> None:
    async with opened(path) as database:
        await database.write(lambda connection: connection.execute("PRAGMA busy_timeout = 10").fetchall())
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="another process holds its lock"):
            await database.write(insert("a"))
        other.close()
        await database.write(insert("a"))


@pytest.mark.anyio
async def test_an_answer_is_as_of_its_beginning(database: Database) -> None:
    for name in "abcdefgh":
        await database.write(insert(name))
    async with database.stream(all_names, take_three) as pages:
        await database.write(insert("bb"))
        await database.write(lambda connection: connection.execute("DELETE FROM things WHERE name > 'f'").rowcount)
        assert [page async for page in pages] == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]
    assert await database.read(names) == ["a", "b", "bb", "c", "d", "e", "f"]


@pytest.mark.anyio
@pytest.mark.parametrize(("rows", "read"), [("", [0]), ("ab", [2]), ("abc", [3, 0]), ("abcd", [3, 1])])
async def test_a_page_with_room_left_is_the_last_one(database: Database, rows: str, read: list[int]) -> None:
    for name in rows:
        await database.write(insert(name))
    taken: list[int] = []

    def take(cursor: sqlite3.Cursor) -> Page[str]:
        page = take_three(cursor)
        taken.append(len(page.rows))
        return page

    async with database.stream(all_names, take) as pages:
        assert [name async for page in pages for name in page] == list(rows)
    assert taken == read


@pytest.mark.anyio
async def test_a_query_is_of_the_moment_of_what_it_was_made_from(database: Database) -> None:
    await database.write(insert("a"))
    made, written = threading.Event(), threading.Event()

    def all_that_are_there(connection: sqlite3.Connection) -> Query:
        found = names(connection)
        made.set()
        assert written.wait(60)
        return "SELECT name, ? FROM things ORDER BY name", (len(found),)

    async def write_meanwhile() -> None:
        await asyncio.to_thread(made.wait, 60)
        await database.write(insert("b"))
        written.set()

    writing = asyncio.create_task(write_meanwhile())
    async with database.stream(all_that_are_there, lambda cursor: take_page(cursor, 3)) as pages:
        assert [page async for page in pages] == [[("a", 1)]]
    await writing


@pytest.mark.anyio
async def test_an_answer_that_was_read_to_its_end_holds_no_log(path: Path) -> None:
    async with opened(path) as database:
        await database.write(insert("a"))
        async with database.stream(all_names, take_three) as pages:
            assert [page async for page in pages] == [["a"]]
            await database.write(insert("b"))
            with closing(sqlite3.connect(path)) as beside:
                ((busy, *_),) = beside.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            assert not busy


@pytest.mark.anyio
async def test_a_faulty_query_shows_before_the_answer_begins(database: Database) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        async with database.stream(lambda _: ("SELECT 1 FROM nowhere", ()), take_three):
            pytest.fail("entered")


@pytest.mark.anyio
async def test_many_half_read_answers_hold_up_nobody(database: Database) -> None:
    for name in "abcdefgh":
        await database.write(insert(name))

    async def read_slowly() -> list[str]:
        async with database.stream(all_names, take_three) as pages:
            first = await anext(pages)
            await arrival.wait()
            await departure.wait()
            return [*first, *[name async for page in pages for name in page]]

    arrival, departure = asyncio.Barrier(51), asyncio.Barrier(51)
    tasks = [asyncio.create_task(read_slowly()) for _ in range(50)]
    await arrival.wait()
    await database.write(insert("i"))
    assert len(await database.read(names)) == 9
    await departure.wait()
    assert await asyncio.gather(*tasks) == [list("abcdefgh")] * 50


@pytest.mark.anyio
async def test_leaving_interrupts_a_query_that_runs(database: Database) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n WHERE x < 0"

    async def read() -> None:
        async with database.stream(lambda _: (endless, ()), take_three):
            pytest.fail("entered")

    task = asyncio.create_task(read())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await database.close()  # waits for the reader's thread


@pytest.mark.anyio
async def test_a_slow_reader_cannot_make_the_log_grow_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "MOST_LOG", 100_000)
    monkeypatch.setattr(database_module, "READERS_PATIENCE", 0.0)
    async with opened(path) as database:
        for name in "abcdefgh":
            await database.write(insert(name))
        async with database.stream(all_names, take_three) as pages:
            assert await anext(pages) == ["a", "b", "c"]
            for number in range(100):
                await database.write(insert(f"{number}" + "x" * 10_000))
            with pytest.raises(StoreUnavailable, match="read too slowly"):
                await anext(pages)


@pytest.mark.anyio
async def test_a_log_that_cannot_be_looked_at_stops_no_writing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> NoReturn:
        raise PermissionError("somebody has closed the folder")

    async with opened(path) as database:
        await database.write(insert("a"))
        async with database.stream(all_names, take_three):
            monkeypatch.setattr(Path, "stat", refuse)
            with anyio.fail_after(10):
                await database.write(insert("b"))
                await database.write(insert("c"))
            monkeypatch.undo()
        assert await database.read(names) == ["a", "b", "c"]


@pytest.mark.anyio
async def test_a_closed_database_is_one_file_that_can_be_copied(path: Path) -> None:
    async with opened(path) as database:
        await database.write(insert("a"))
        assert await database.read(names) == ["a"]
        async with database.stream(all_names, take_three) as pages:
            assert await anext(pages) == ["a"]
    assert [file.name for file in path.parent.glob("things.db*")] == ["things.db"]


@pytest.mark.anyio
async def test_closing_ends_answers_and_finishes_writes(path: Path) -> None:
    async with opened(path) as database:
        for name in "abcdefgh":
            await database.write(insert(name))
        async with database.stream(all_names, take_three) as pages:
            await anext(pages)
            last = database.submit(insert("last"))
            await database.close()
            assert await last == 1
            with pytest.raises(StoreUnavailable, match="closed"):
                await anext(pages)
        with pytest.raises(StoreUnavailable, match="closed"):
            await database.write(insert("late"))
        with pytest.raises(StoreUnavailable, match="closed"):
            await database.read(names)
    assert not path.with_name("things.db-wal").exists()


@pytest.mark.anyio
async def test_reading_beside_a_running_daemon(path: Path) -> None:
    async with opened(path) as database:
        await database.write(insert("a"))
        beside = Database.open_read_only(path, PACKAGE)
        assert await beside.read(names) == ["a"]
        with pytest.raises(StoreUnavailable, match="reading only"):
            await beside.write(insert("b"))
        await beside.close()


@pytest.mark.anyio
async def test_the_file_is_not_for_everybody(database: Database) -> None:
    assert stat.S_IMODE(database.path.stat().st_mode) & stat.S_IRWXO == 0


@pytest.mark.anyio
async def test_each_commit_is_durable_and_savepoints_are_kept_in_memory(database: Database) -> None:
    def settings(connection: sqlite3.Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "temp_store")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await database.write(settings) == ["wal", 2, 1, 2]


@pytest.mark.anyio
async def test_migrations_run_once_and_in_order(path: Path, scripts: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "auditord")
    async with opened(path) as database:
        await database.write(insert("old"))
    (scripts / "0002_colour.sql").write_text("ALTER TABLE things ADD COLUMN colour TEXT DEFAULT 'grey';\n")
    with pytest.raises(SchemaMismatch, match="has schema 1, this version of auditord needs 2: start the daemon once"):
        Database.open_read_only(path, PACKAGE)
    for _ in range(2):
        async with opened(path) as database:
            colours = await database.read(lambda c: c.execute("SELECT name, colour FROM things").fetchall())
            assert colours == [("old", "grey")]
    # A file that is made is not migrated, and nothing is migrated twice.
    lines = [message for message in caplog.messages if message.startswith("migrating ")]
    assert [line.startswith(f"migrating {path} from schema 1 to 2") for line in lines].count(True) == 1


@pytest.mark.anyio
async def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, scripts: Path) -> None:
    async with opened(path) as database:
        await database.write(insert("old"))
    second = scripts / "0002_colour.sql"
    second.write_text("ALTER TABLE things ADD COLUMN colour TEXT;\nINSERT INTO nowhere VALUES (1);\n")
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        Database.open(path, PACKAGE)
    second.unlink()
    async with opened(path) as database:
        await database.write(insert("new"))
        assert await database.read(names) == ["new", "old"]


@pytest.mark.anyio
async def test_a_newer_file_is_refused(path: Path, scripts: Path) -> None:
    second = scripts / "0002_colour.sql"
    second.write_text("ALTER TABLE things ADD COLUMN colour TEXT;\n")
    async with opened(path):
        pass
    second.unlink()
    with pytest.raises(SchemaMismatch, match=r"things\.db has schema 2, this version of auditord knows up to 1"):
        Database.open(path, PACKAGE)


def test_another_programs_file_is_refused_and_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(SchemaMismatch, match=r"things\.db is another program's database"):
        Database.open(path, PACKAGE)
    assert path.read_bytes() == before


CHANGES: Final = {
    "CREATE TRIGGER spy AFTER INSERT ON things BEGIN DELETE FROM things; END": "the trigger spy is foreign",
    "CREATE VIEW more AS SELECT * FROM things": "the view more is foreign",
    "CREATE TABLE others (x); INSERT INTO others VALUES (1)": "the table others is foreign",
    "CREATE INDEX by_size ON things (size)": "the index by_size is foreign",
    "DROP TRIGGER no_big_ones": "the trigger no_big_ones is missing",
    "ALTER TABLE things ADD COLUMN more TEXT DEFAULT '--'": "the table things is changed",
}


@pytest.mark.parametrize("statement", CHANGES)
def test_a_file_whose_schema_was_changed_is_refused_by_name_and_migrated_no_further(
    path: Path, scripts: Path, statement: str
) -> None:
    Database.open(path, PACKAGE)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statement)
    (scripts / "0002_more.sql").write_text("CREATE TABLE later (x);")
    with pytest.raises(SchemaMismatch, match=f"was changed by another program: {CHANGES[statement]}"):
        Database.open(path, PACKAGE)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'later'").fetchall() == []
    assert find_changes(path, PACKAGE) == [CHANGES[statement]]


def test_comments_and_statistics_are_no_changes(path: Path, scripts: Path) -> None:
    Database.open(path, PACKAGE)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ANALYZE")
    script = scripts / "0001_things.sql"
    script.write_text(script.read_text().replace("size INTEGER)", "size  INTEGER -- in bytes\n)"))
    assert find_changes(path, PACKAGE) == []
    Database.open(path, PACKAGE)


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("shopping list\n" * 100)
    with pytest.raises(SchemaMismatch, match="not an SQLite database"):
        Database.open(path, PACKAGE)
    assert path.read_text() == "shopping list\n" * 100


def test_a_second_opening_ends_no_lock_of_the_first(path: Path) -> None:
    """Another process would take itself for the last one, and delete the log that this one goes on to write."""
    with closing(open_for_writing(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE things (name TEXT)")
        open_for_writing(path).close()
        in_another_process(path, "INSERT INTO things VALUES ('theirs')")
        connection.execute("INSERT INTO things VALUES ('ours')")
        assert in_another_process(path, "SELECT name FROM things") == "[('theirs',), ('ours',)]\n"


def in_another_process(path: Path, statement: str) -> str:
    code = (
        "import contextlib, sqlite3, sys\n"
        "with contextlib.closing(sqlite3.connect(sys.argv[1], isolation_level=None)) as connection:\n"
        "    print(connection.execute(sys.argv[2]).fetchall())"
    )
    return subprocess.run(
        [sys.executable, "-c", code, path, statement], check=True, capture_output=True, text=True
    ).stdout


def test_a_missing_folder_is_named(path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"/nowhere/things\.db cannot be used: No such file"):
        Database.open(path.parent / "nowhere" / path.name, PACKAGE)


def test_a_folder_in_the_place_of_the_file_is_named(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreUnavailable, match=r"things\.db cannot be used: Is a directory"):
        Database.open(path, PACKAGE)


def test_migrations_without_a_number_or_a_mark_are_a_mistake(path: Path, scripts: Path) -> None:
    (scripts / "0003_gap.sql").touch()
    with pytest.raises(ValueError, match="must hold 0001_slug"):
        Database.open(path, PACKAGE)
    (scripts / "0003_gap.sql").unlink()
    (scripts / "0001_things.sql").write_text("CREATE TABLE things (name TEXT);")
    with pytest.raises(ValueError, match="must set PRAGMA application_id"):
        Database.open(path, PACKAGE)


async def fill(database: Database, count: int) -> None:
    await database.write(
        lambda connection: connection.executemany(
            "INSERT INTO things VALUES (?, ?)", [(f"{number:06d}" + "x" * 500, number) for number in range(count)]
        )
    )


def damage(path: Path) -> None:
    """Overwrite the second half of a file that nobody has open."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = b"\xa5" * (len(content) - len(content) // 2)
    path.write_bytes(content)


@pytest.mark.anyio
async def test_a_small_file_that_is_damaged_is_refused_at_the_start(path: Path) -> None:
    async with opened(path) as database:
        await fill(database, 1_000)
    damage(path)
    with pytest.raises(
        StoreDamaged, match=r"things\.db is not available: it is damaged; see `auditord database check`"
    ):
        Database.open(path, PACKAGE)
    assert find_damage(path)


@pytest.mark.anyio
async def test_a_file_whose_schema_cannot_be_read_has_a_finding(path: Path) -> None:
    async with opened(path):
        pass
    with path.open("r+b") as file:
        file.seek(100)  # behind the header
        file.write(b"\xa5" * 2_000)
    assert find_damage(path) == ["database disk image is malformed"]


@pytest.mark.anyio
async def test_nothing_is_written_to_a_file_that_turned_out_to_be_damaged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "CHECKED_BYTES", 0)  # as one that is too large to be checked at each start
    async with opened(path) as database:
        await fill(database, 1_000)
    damage(path)
    async with opened(path) as database:
        with pytest.raises(StoreDamaged, match="no longer written to"):
            await database.read(names)
        done = list[str]()
        with pytest.raises(StoreDamaged, match="no longer written to"):
            await database.write(lambda _: done.append("work"))
    assert done == []


@pytest.mark.anyio
async def test_a_write_that_meets_damage_is_the_last_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "CHECKED_BYTES", 0)
    async with opened(path) as database:
        await fill(database, 1_000)
    damage(path)
    async with opened(path) as database:
        with pytest.raises(StoreDamaged):
            await database.write(lambda connection: connection.execute("UPDATE things SET size = size + 1"))
        with pytest.raises(StoreDamaged):
            await database.write(lambda _: None)


@pytest.mark.anyio
async def test_a_file_gives_its_room_back_in_pieces(database: Database) -> None:
    await fill(database, 10_000)
    await database.write(lambda connection: connection.execute("DELETE FROM things"))
    free = await database.read(free_pages)
    assert free > 500
    await database.write(lambda connection: give_room_back(connection, 100))
    assert await database.read(free_pages) == free - 100
    await database.write(lambda connection: give_room_back(connection, free))
    assert await database.read(free_pages) == 0
    assert await database.read(names) == []
