"""Backups beside writers: whole or none at all, and no entry is in neither of the two files."""

import json
import os
import shutil
import sqlite3
import stat
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from datetime import datetime
from itertools import count
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from auditord.backup import creation
from auditord.backup.creation import BackupFailed
from auditord.backup.manifest import (
    FILE,
    TOKENS,
    BackupDamaged,
    NoBackup,
    delete_unfinished,
    find_backup,
    new_folder,
    read_backups,
    read_manifest,
    verify_files,
)
from auditord.backup.snapshots import StoreSnapshot, open_snapshot
from auditord.backup.sqlite import Pace
from auditord.cli import auditord
from auditord.config.model import StoreSection
from auditord.errors import StoreDamaged
from auditord.ingest import Pairing, StoreSink
from auditord.spool import Spool
from auditord.store import Duplicates, Provenance
from auditord.store.store import RecordStore
from auditord.tasks.senders import forward_all
from auditord.testing import make_record
from auditord.testing.daemon import running_daemon
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_hookspecs import Batch
from tests.backup_site import NOW, QUEUED, STORED, WAITING, Site, Steps, ids
from tests.integration.test_database import damage
from tests.other_user import NOBODY, give_to_nobody, needs_root


@pytest.fixture
def files(tmp_path: Path) -> Site:
    return Site(tmp_path, None)


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, None if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


def checkpoint(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "spool.db")) as connection:
        row = connection.execute("SELECT value FROM checkpoint").fetchone()
        return 0 if row is None else int(json.loads(row[0]))


async def collecting(spool: Spool) -> None:
    """A collector whose checkpoint says how many jobs it has read."""
    for number in count(1):
        await spool.enqueue("slurm", Batch([make_record(f"job-{number}")], checkpoint=number), ["local"])


async def delivering(spool: Spool, store: RecordStore) -> None:
    sink = StoreSink(store, lambda: NOW, pairing=Pairing(store, spool))
    while True:
        claimed = await spool.claim("local", 7)
        await sink.deliver([each.entry for each in claimed])
        await spool.settle("local", [each.entry_id for each in claimed], {})


async def posting(store: RecordStore) -> None:
    for number in count(1):
        await store.add(make_record(f"post-{number}"), Provenance(NOW, "client"), Duplicates.SAME_RUN)


async def forwarding(spool: Spool, store: RecordStore) -> None:
    while True:
        await forward_all(store, spool, ["elsewhere"])


@pytest.mark.anyio
async def test_no_job_before_the_checkpoint_is_in_neither_file(files: Site) -> None:
    async with files.opened() as (spool, store), anyio.create_task_group() as group:
        group.start_soon(collecting, spool)
        group.start_soon(delivering, spool, store)
        wanted: set[str] = set()
        for _ in range(5):
            folder = (await files.backup()).folder
            wanted = {f"job-{number}" for number in range(1, checkpoint(folder) + 1)}
            assert wanted <= ids(folder / "records.db", STORED) | ids(folder / "spool.db", QUEUED)
        assert wanted
        group.cancel_scope.cancel()


@pytest.mark.anyio
async def test_nothing_that_waits_for_other_destinations_is_in_neither_file(
    files: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with files.opened(outbox=True) as (spool, store), anyio.create_task_group() as group:

        @asynccontextmanager
        async def opened_later(section: StoreSection, *, dump: bool) -> AsyncGenerator[StoreSnapshot, None]:
            for _ in range(20):  # time in which entries pass from the outbox to the spool, if they may
                await spool.statistics()
            async with open_snapshot(section, dump=dump) as source:
                yield source

        monkeypatch.setattr(creation, "open_snapshot", opened_later)
        stored: set[str] = set()
        group.start_soon(posting, store)
        group.start_soon(forwarding, spool, store)
        for _ in range(5):
            folder = (await files.backup()).folder
            waiting = ids(folder / "records.db", WAITING)
            stored = ids(folder / "records.db", STORED)
            assert stored <= waiting | ids(folder / "spool.db", QUEUED)
        assert stored
        group.cancel_scope.cancel()


@pytest.mark.anyio
async def test_what_is_written_during_a_backup_is_not_in_it(files: Site) -> None:
    async with files.opened() as (_, store):
        await store.add(make_record("before"), Provenance(NOW), Duplicates.SAME_RUN)

        def write() -> None:
            with closing(sqlite3.connect(files.state / "records.db")) as connection, connection:
                connection.execute("UPDATE records SET record_id = 'after'")

        made = await files.backup(Steps({"spool": write}))
    assert ids(made.folder / "records.db", STORED) == {"before"}
    assert ids(files.state / "records.db", STORED) == {"after"}


@pytest.mark.anyio
async def test_the_manifest_says_what_is_in_it(site: Site) -> None:
    async with site.opened() as (spool, store):
        await store.add(make_record("a"), Provenance(NOW), Duplicates.SAME_RUN)
        await spool.enqueue("slurm", Batch([make_record("b")], checkpoint=1), ["local"])
        steps = Steps()
        made = await site.backup(steps)
    manifest = read_manifest(made.folder)
    assert manifest == made.manifest
    assert (manifest.store.records, manifest.store.tables["spools"]) == (1, 1)
    assert manifest.spool.queued == {"local": 1}
    assert manifest.spool.checkpoints.keys() == {"slurm"}
    assert manifest.made_at == NOW
    assert sorted(path.name for path in made.folder.iterdir()) == sorted([*manifest.files, "manifest.json"])
    verify_files(made.folder, manifest)
    assert {"spool", "checking"} <= set(steps.seen)
    assert made.advice is None


@pytest.mark.anyio
async def test_tokens_are_in_it_as_hashes(files: Site) -> None:
    async with files.opened():
        stored, token = new_token("grafana", ["reader"], NOW, None)
        TokenFile(files.state).change(lambda _: [stored])
        made = await files.backup()
    assert TokenFile(made.folder).tokens() == {stored.token_id: stored}
    secret = token.partition(stored.token_id)[2].removeprefix("_")  # it may contain further underscores
    assert secret.encode() not in (made.folder / TOKENS).read_bytes()
    assert stat.S_IMODE((made.folder / TOKENS).stat().st_mode) & stat.S_IRWXO == 0
    verify_files(made.folder, made.manifest)
    (made.folder / TOKENS).write_bytes(b"x" * made.manifest.files[TOKENS].size)
    with pytest.raises(BackupDamaged, match=r"tokens\.json is damaged"):
        verify_files(made.folder, made.manifest)


@pytest.mark.anyio
async def test_without_a_dump_the_recipe_is_said(tmp_path: Path, postgres_url: str) -> None:
    site = Site(tmp_path, postgres_url)
    async with site.opened():
        made = await site.backup(dump=False)
    assert list(made.manifest.files) == ["spool.db"]
    assert made.advice is not None
    assert "pg_dump --format=custom --schema=auditord" in made.advice
    assert made.manifest.store.file is None


@pytest.mark.anyio
async def test_a_damaged_file_is_named(files: Site) -> None:
    async with files.opened():
        made = await files.backup()
    copy = made.folder / "records.db"
    copy.write_bytes(copy.read_bytes()[:-1] + b"x")
    with pytest.raises(BackupDamaged, match=r"records\.db is damaged"):
        verify_files(made.folder, made.manifest)
    copy.unlink()
    with pytest.raises(BackupDamaged, match=r"records\.db cannot be read: No such file"):
        verify_files(made.folder, made.manifest)


@pytest.mark.anyio
async def test_a_damaged_store_makes_no_backup(files: Site) -> None:
    async with files.opened() as (_, store):
        for number in range(300):
            await store.add(make_record(f"r{number}"), Provenance(NOW), Duplicates.SAME_RUN)
    whole = (await files.backup()).folder
    damage(files.state / "records.db")
    with pytest.raises(StoreDamaged, match="damaged"):
        await files.backup(keep=1)
    assert [path for path in files.place.iterdir() if path.is_dir()] == [whole]


@pytest.mark.anyio
async def test_a_backup_of_a_later_version_is_refused(files: Site) -> None:
    async with files.opened():
        made = await files.backup()
    manifest = made.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(BackupDamaged, match="newer auditord"):
        read_manifest(made.folder)


@pytest.mark.anyio
async def test_the_oldest_give_way_and_what_was_never_finished(files: Site) -> None:
    async with files.opened():
        made = [await files.backup() for _ in range(4)]
        (made[1].folder / "manifest.json").unlink()
        (files.place / "other").mkdir()
        last = await files.backup(keep=2)
    kept = sorted(path.name for path in files.place.iterdir() if path.is_dir())
    assert kept == [made[3].folder.name, last.folder.name, "other"]
    assert set(last.discarded) == {each.folder for each in made[:3]}


def at(site: Site, monkeypatch: pytest.MonkeyPatch, *times: str) -> int:
    """Let the next backups be of these times; return their number."""
    moments = iter([datetime.fromisoformat(f"2026-12-{each}:00+00:00") for each in times])
    monkeypatch.setattr(site, "now", lambda: next(moments))
    return len(times)


@pytest.mark.anyio
async def test_backups_of_one_day_delete_those_of_no_other_day(files: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    days = ["01T02:00", "02T02:00", "03T02:00", "03T20:00", "04T02:00"]
    crashes = [f"05T09:{minute:02}" for minute in range(6)]
    async with files.opened():
        for _ in range(at(files, monkeypatch, *days, *crashes)):
            await files.backup(keep=4)
    left = [each.made_at.strftime("%dT%H:%M") for each in read_backups(files.place)[0].values()]
    assert left == [*reversed(crashes[2:]), "04T02:00", "03T20:00", "02T02:00"]


@pytest.mark.anyio
async def test_the_order_of_backups_does_not_depend_on_the_clock(files: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async with files.opened():
        for _ in range(at(files, monkeypatch, "01T02:00", "30T02:00")):
            await files.backup()
    files.lose_spool()  # the numbers are of the folder, not of the spool
    async with files.opened() as (_, store):
        await store.add(make_record("a"), Provenance(NOW), Duplicates.SAME_RUN)
        at(files, monkeypatch, "02T02:00")
        made = await files.backup()
    assert find_backup(files.place) == made.folder
    async with files.opened():
        for _ in range(at(files, monkeypatch, "03T02:00", "04T02:00")):
            await files.backup(keep=2)
    left = [each.made_at.day for each in read_backups(files.place)[0].values()]
    assert left == [4, 3, 30, 1]  # those of the former spool stay


@pytest.mark.anyio
async def test_the_clock_that_was_ahead_keeps_no_backup_for_ever(files: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async with files.opened():
        for _ in range(at(files, monkeypatch, "01T02:00", "30T02:00", "02T02:00", "03T02:00")):
            await files.backup(keep=2)
    assert [each.made_at.day for each in read_backups(files.place)[0].values()] == [3, 2]


def nest(folder: Path) -> None:
    (folder / FILE).write_text('{"format": 1, "store": ' + '{"tables": ' * 200_000 + "}" * 200_000 + "}")


def nest_unknown(folder: Path) -> None:
    (folder / FILE).write_text('{"other": ' + "[" * 200_000 + "]" * 200_000 + ', "format": 1}')


def grow(folder: Path) -> None:
    (folder / FILE).touch()
    os.truncate(folder / FILE, 20 << 30)  # sparse


@pytest.mark.parametrize("spoil", [nest, nest_unknown, grow])
def test_a_manifest_that_no_backup_makes_is_refused_in_little_memory(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(BackupDamaged, match=r"manifest\.json (cannot be read|has more than)"):
            read_manifest(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.anyio
async def test_a_sparse_copy_is_refused_by_its_size(files: Site) -> None:
    async with files.opened():
        made = await files.backup()
    os.truncate(made.folder / "records.db", 10 << 40)
    with pytest.raises(BackupDamaged, match=r"has 10995116277760 bytes, the manifest says \d+;"):
        verify_files(made.folder, made.manifest)


@pytest.mark.anyio
async def test_an_unreadable_manifest_is_passed_over_only_by_a_newer_backup(files: Site) -> None:
    async with files.opened():
        first, second, third = [await files.backup() for _ in range(3)]
    (second.folder / FILE).write_text("{")
    assert find_backup(files.place) == third.folder
    (third.folder / FILE).write_text("{")
    with pytest.raises(BackupDamaged, match=f"cannot be read: .*; the newest that can be read is {first.folder}"):
        find_backup(files.place)


@needs_root
def test_backups_of_another_user_are_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of root, who has called the command and left one complete and one unfinished."""
    monkeypatch.chdir(give_to_nobody(tmp_path / "b"))
    for name in ("auditord-20261122T010203Z", "auditord-20261123T010203Z"):
        Path(name).mkdir(mode=0o700)
    Path("auditord-20261122T010203Z", FILE).write_text("{}")
    os.seteuid(NOBODY)
    try:
        found, damaged = read_backups(Path())
        assert (found, len(damaged)) == ({}, 2)
        assert delete_unfinished(Path()) == []
        with pytest.raises(BackupDamaged, match="Permission denied"):
            find_backup(Path())
    finally:
        os.seteuid(0)


@pytest.mark.anyio
async def test_an_empty_store_beside_an_unmounted_disk_takes_the_place_of_no_backup(files: Site) -> None:
    async with files.opened():
        made = [await files.backup() for _ in range(2)]
    shutil.rmtree(files.state)
    async with files.opened():
        await files.backup()
        await files.backup(keep=1)
    kept = {path.name for path in files.place.iterdir() if path.is_dir()}
    assert {each.folder.name for each in made} < kept
    assert len(kept) == 3


@pytest.mark.anyio
async def test_the_newest_complete_one_is_found(files: Site) -> None:
    with pytest.raises(NoBackup, match="no complete backup"):
        find_backup(files.place)
    async with files.opened():
        first, second, third = [await files.backup() for _ in range(3)]
    (third.folder / "manifest.json").unlink()
    assert find_backup(files.place) == second.folder
    assert find_backup(first.folder) == first.folder
    (second.folder / "manifest.json").unlink()
    (first.folder / "manifest.json").unlink()
    with pytest.raises(NoBackup, match="unfinished: auditord-"):
        find_backup(files.place)


@pytest.mark.anyio
async def test_where_no_daemon_has_run_there_is_nothing(files: Site) -> None:
    with pytest.raises(BackupFailed, match="nothing to back up"):
        await files.backup()


def test_the_rate_is_kept(anyio_backend: str) -> None:
    slept: list[float] = []
    clock: Iterator[float] = iter([0.0, 0.5, 4.0])

    async def pace() -> None:
        paced = Pace(lambda _done, _total: None, 100, lambda: next(clock), slept.append)
        await anyio.to_thread.run_sync(paced, 200, 400)
        await anyio.to_thread.run_sync(paced, 400, 400)

    anyio.run(pace, backend=anyio_backend)
    assert slept == [1.5]


@pytest.fixture
def command(tmp_path: Path) -> Generator[Callable[..., Result], None, None]:
    with running_daemon(tmp_path, {}):
        yield lambda *words: CliRunner().invoke(auditord, ["--config", str(tmp_path / "auditord.json"), *words])


def test_the_command_works_beside_a_daemon(command: Callable[..., Result], tmp_path: Path) -> None:
    done = command("backup", str(tmp_path / "b"), "--rate", "100MB")
    assert done.exit_code == 0, done.output
    assert "records    0; digest" in done.output
    assert f"not in it  {tmp_path / 'auditord.json'}: the configuration, with all files that it names" in done.output
    again = command("backup", str(tmp_path / "b"), "--keep", "1", "--output", "json")
    if isinstance(again.exception, NoBackup):  # within the same second
        return
    document = json.loads(again.output)
    assert document["discarded"] == [str(find_backup(tmp_path / "b"))] or document["store"]["records"] == 0


@pytest.mark.parametrize("rate", ["fast", "0"])
def test_a_rate_that_makes_no_sense_is_refused(command: Callable[..., Result], tmp_path: Path, rate: str) -> None:
    with suppress(SystemExit):
        assert command("backup", str(tmp_path / "b"), "--rate", rate).exit_code == 2


@pytest.mark.parametrize(
    ("folder", "named", "reason"), [("file", "file", "File exists"), ("file/below/it", "file/below", "Not a directory")]
)
def test_a_folder_that_cannot_be_made_is_named(
    command: Callable[..., Result], tmp_path: Path, folder: str, named: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    failed = command("backup", str(tmp_path / folder))
    said = f"cannot make the folder {tmp_path / folder}, give another one: {tmp_path / named}: {reason}"
    assert (type(failed.exception), str(failed.exception)) == (BackupFailed, said)


def test_a_backup_that_was_killed_within_the_same_second_is_made_anew(tmp_path: Path) -> None:
    left = new_folder(tmp_path, NOW)
    (left / "spool.db").write_bytes(b"half of it")
    assert (new_folder(tmp_path, NOW), list(left.iterdir())) == (left, [])
    (left / FILE).write_text("{}")
    with pytest.raises(NoBackup, match="another backup in the same second"):
        new_folder(tmp_path, NOW)
