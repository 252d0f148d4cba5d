"""Restoring what was lost: the store, the spool or both; then everything is as if nothing had happened."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio import to_thread
from click.testing import CliRunner, Result

from auditord.backup.manifest import (
    BackupDamaged,
    Manifest,
    NoBackup,
    describe_file,
    find_backup,
    read_manifest,
    write_manifest,
)
from auditord.backup.notes import (
    RESTORED,
    Unfinished,
    begin,
    collectors_behind,
    forget_restore,
    note_restore,
    read_unfinished,
)
from auditord.backup.restoring import Behind, RestoreRefused
from auditord.cli import auditord
from auditord.errors import StoreMismatch
from auditord.spool import Spool
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.testing import make_record
from auditord.testing.daemon import running_daemon
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_hookspecs import Batch, Quarantined, RunReport
from tests.backup_site import NOW, QUEUED, Site, ids
from tests.postgres_server import migrate_database
from tests.quarantined_entries import read_quarantine

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


@pytest.fixture
def files(tmp_path: Path) -> Site:
    return Site(tmp_path, None)


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, None if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


def jobs(number: int) -> list[str]:
    return sorted(f"job-{each}" for each in range(1, number + 1))


async def filled(site: Site) -> None:
    """Ten jobs collected, seven of them delivered, a backup, five more jobs; everything delivered."""
    await site.collect(10)
    await site.deliver(7)
    await site.backup()
    await site.collect(15)
    await site.deliver()
    assert await site.records() == jobs(15)


async def test_both_lost(site: Site) -> None:
    await filled(site)
    site.lose_store()
    site.lose_spool()
    done = await site.restore()
    assert done.aside == []
    assert len(await site.records()) == 7
    await site.collect(15)
    await site.deliver()
    assert await site.records() == jobs(15)


async def test_the_store_lost(site: Site) -> None:
    """Three jobs were on their way when the backup was made: they are in its spool alone."""
    await filled(site)
    site.lose_store()
    done = await site.restore()
    assert done.behind is Behind.STORE
    assert done.set_back is not None
    assert done.set_back.queued == 3
    await site.collect(15)
    await site.deliver()
    assert await site.records() == jobs(15)


@pytest.mark.parametrize("lost", Behind)
async def test_one_lost_right_after_the_backup(site: Site, lost: Behind) -> None:
    """Nothing has been delivered since, so both belong together as soon as the copy is in its place."""
    await site.collect(10)
    await site.deliver(7)
    await site.backup()
    if lost is Behind.STORE:
        site.lose_store()
    else:
        site.lose_spool()
    assert (await site.restore()).behind is lost
    await site.collect(15)
    await site.deliver()
    assert await site.records() == jobs(15)


async def test_the_spool_lost(site: Site) -> None:
    await filled(site)
    await site.collect(20)
    site.lose_spool()
    done = await site.restore()
    assert done.behind is Behind.SPOOL
    await site.collect(20)
    await site.deliver()
    assert await site.records() == jobs(20)


async def test_what_waited_in_the_spool_that_is_left_stays_behind_what_waited_then(files: Site) -> None:
    await filled(files)
    await files.collect(18)
    files.lose_store()
    await files.restore()
    with closing(sqlite3.connect(files.state / "spool.db")) as connection:
        queue = [name for (name,) in connection.execute("SELECT record_id FROM queue ORDER BY entry_id")]
    assert queue == ["job-8", "job-9", "job-10", "job-16", "job-17", "job-18"]


@pytest.mark.parametrize("lost", ["store", "spool", "both"])
@pytest.mark.parametrize("are_lost", [True, False])
async def test_tokens_come_back_if_they_are_lost(files: Site, lost: str, are_lost: bool) -> None:  # noqa: FBT001
    await files.collect(1)
    tokens = TokenFile(files.state)
    [old, new] = [new_token(name, ["reader"], NOW, None)[0] for name in ("old", "new")]
    tokens.change(lambda _: [old])
    await files.backup()
    tokens.change(lambda _: [new])  # a revoked one must not come back
    if are_lost:
        (files.state / "tokens.json").unlink()
    if lost != "spool":
        files.lose_store()
    if lost != "store":
        files.lose_spool()
    done = await files.restore()
    assert done.has_tokens is are_lost
    assert list(TokenFile(files.state).tokens().values()) == [old if are_lost else new]


async def test_what_was_in_quarantine_then_is_there_again(files: Site) -> None:
    """It was retried after the backup, and its record is in the lost store alone."""
    await files.collect(1)
    async with files.opened() as (spool, _):
        await spool.enqueue("slurm", Batch([], [Quarantined("j", {"a": 1}, "odd")], checkpoint=2), ["local"])
    await files.deliver()
    await files.backup()
    async with files.opened() as (spool, _):
        [entry] = await read_quarantine(spool)
        await spool.quarantine_discard([entry.quarantine_id])
    await files.collect(4)
    await files.deliver()
    files.lose_store()
    done = await files.restore()
    assert done.set_back is not None
    assert done.set_back.quarantined == 1
    async with files.opened() as (spool, _):
        [again] = await read_quarantine(spool)
    assert (again.source_id, again.raw_json) == ("j", {"a": 1})


async def test_a_store_put_back_by_other_means_is_continued(tmp_path: Path, postgres_url: str) -> None:
    """The backup has the spool alone, the database came back from a dump that was made after it."""
    site = Site(tmp_path, postgres_url)
    await site.collect(5)
    await site.deliver()
    await site.backup(dump=False)
    await site.collect(7)
    await site.deliver()
    await site.backup(dump=True)
    dump = max(path for path in site.place.glob("*/records.dump"))
    await site.collect(9)
    await site.deliver()
    site.lose_store()
    (dump.parent / "manifest.json").unlink()
    with pytest.raises(RestoreRefused, match="only the spool: restore the database with its own tools"):
        await site.restore()
    from auditord.backup.postgres import load_dump  # noqa: PLC0415 only here
    from auditord.database.postgres.address import address_of  # noqa: PLC0415 only here

    await load_dump(address_of(site.configuration.store), dump)
    await site.restore()
    await site.collect(9)
    await site.deliver()
    assert await site.records() == jobs(9)


async def test_a_store_that_was_made_anew_and_is_empty_gives_way(site: Site) -> None:
    await filled(site)
    site.lose_store()
    if site.url.startswith("postgresql"):
        await to_thread.run_sync(migrate_database, site.url)
    async with open_store(site.url, counted_keys=()):
        pass
    done = await site.restore()
    assert done.behind is Behind.STORE
    await site.collect(15)
    await site.deliver()
    assert await site.records() == jobs(15)


async def test_what_is_there_is_left_alone(site: Site) -> None:
    await filled(site)
    with pytest.raises(RestoreRefused, match=r"belong together: nothing is missing.*--force"):
        await site.restore()
    assert await site.records() == jobs(15)


def put_back_store(site: Site) -> None:
    site.lose_store()
    (site.state / "records.db").write_bytes((find_backup(site.place) / "records.db").read_bytes())


def put_back_spool(site: Site) -> None:
    site.lose_spool()
    (site.state / "spool.db").write_bytes((find_backup(site.place) / "spool.db").read_bytes())


@pytest.mark.parametrize("store_is_lost", [True, False])
async def test_a_new_spool_keeps_its_queue_behind_that_of_the_backup(files: Site, store_is_lost: bool) -> None:  # noqa: FBT001
    """It was made while the store could not be asked, and has received something since."""
    await filled(files)
    files.lose_spool()
    if store_is_lost:
        files.lose_store()
    async with Spool.opened(files.state, lambda: NOW) as spool:
        await spool.enqueue("api", Batch([make_record("waits")]), ["local"])
    done = await files.restore()
    assert done.behind is (Behind.STORE if store_is_lost else Behind.SPOOL)
    with closing(sqlite3.connect(files.state / "spool.db")) as connection:
        queue = [name for (name,) in connection.execute("SELECT record_id FROM queue ORDER BY entry_id")]
    assert queue == ["job-8", "job-9", "job-10", "waits"]
    await files.collect(15)
    await files.deliver()
    assert await files.records() == sorted([*jobs(15), "waits"])


async def test_a_spool_that_had_met_no_store_comes_back_once(files: Site) -> None:
    files.state.mkdir()
    async with Spool.opened(files.state, lambda: NOW) as spool:
        await spool.enqueue("slurm", Batch([make_record("job-1")], checkpoint=1), ["local"])
    async with open_store(files.url, counted_keys=()) as store:
        await store.add(make_record("post"), Provenance(NOW), Duplicates.SAME_RUN)
    await files.backup()
    files.lose_spool()
    done = await files.restore()
    assert (done.behind, done.set_back) == (Behind.SPOOL, None)
    assert len(ids(files.state / "spool.db", "SELECT entry_id FROM queue")) == 1
    await files.collect(3)
    await files.deliver()
    assert await files.records() == [*jobs(3), "post"]


@pytest.mark.parametrize(
    ("change", "behind", "queued"), [(put_back_store, Behind.STORE, 3), (put_back_spool, Behind.SPOOL, None)]
)
async def test_a_part_that_is_older_is_recognised(
    files: Site, change: Callable[[Site], None], behind: Behind, queued: int | None
) -> None:
    await filled(files)
    change(files)
    done = await files.restore()
    assert (done.behind, None if done.set_back is None else done.set_back.queued) == (behind, queued)
    await files.collect(15)
    await files.deliver()
    assert await files.records() == jobs(15)


async def test_force_puts_aside_and_deletes_nothing(files: Site) -> None:
    await filled(files)
    done = await files.restore(force=True)
    aside = [Path(place) for place in done.aside]
    assert [path.name for path in aside] == ["records.db", "spool.db"]
    assert len(ids(aside[0], "SELECT record_id FROM records")) == 15
    assert len(await files.records()) == 7
    assert ids(files.state / "spool.db", QUEUED) == {"job-8", "job-9", "job-10"}
    assert not list(files.state.glob(".restoring*"))


async def test_force_renames_the_schema(tmp_path: Path, postgres_url: str) -> None:
    site = Site(tmp_path, postgres_url)
    await filled(site)
    done = await site.restore(force=True)
    assert done.aside[0].startswith("schema before_restore_")
    assert len(await site.records()) == 7


async def test_a_restored_pair_is_not_taken_for_the_lost_one(files: Site) -> None:
    """The disk comes back after all: its store does not know the restored spool, its spool not the restored store."""
    await filled(files)
    done = await files.restore(force=True)
    aside = Path(done.aside[0]).parent
    for name in ("records.db", "spool.db"):
        kept = (files.state / name).read_bytes()
        (files.state / name).write_bytes((aside / name).read_bytes())
        with pytest.raises(StoreMismatch):
            await files.collect(15)
        (files.state / name).write_bytes(kept)


async def test_a_store_older_than_the_backup_is_refused(files: Site) -> None:
    """The checkpoints of the backup lie behind what that store has."""
    await files.collect(3)
    await files.deliver()
    old = (await files.backup()).folder
    await filled(files)
    files.lose_store()
    (files.state / "records.db").write_bytes((old / "records.db").read_bytes())
    with pytest.raises(RestoreRefused, match="Name an older backup"):
        await files.restore()


async def test_a_damaged_backup_is_refused_before_anything_is_touched(files: Site) -> None:
    await filled(files)
    [backup] = files.place.glob("auditord-*")
    copy = backup / "records.db"
    copy.write_bytes(copy.read_bytes()[:-1] + b"x")
    with pytest.raises(BackupDamaged, match="is damaged"):
        await files.restore(force=True)
    assert await files.records() == jobs(15)


@pytest.mark.parametrize("name", ["records.db", "spool.db"])
async def test_a_backup_with_a_foreign_trigger_is_refused_before_anything_is_touched(files: Site, name: str) -> None:
    await filled(files)
    backup = find_backup(files.place)
    with closing(sqlite3.connect(backup / name)) as connection:
        [(table,)] = connection.execute("SELECT name FROM sqlite_master WHERE name IN ('records', 'queue')")
        connection.execute(f"CREATE TRIGGER spy AFTER INSERT ON {table} BEGIN SELECT 1; END")
    manifest = read_manifest(backup)
    document = msgspec.to_builtins(manifest)
    document["files"][name] = msgspec.to_builtins(describe_file(backup / name))
    write_manifest(backup, msgspec.convert(document, Manifest))
    refused = f"^{backup / name} was changed by another program: the trigger spy is foreign"
    with pytest.raises(BackupDamaged, match=refused):
        await files.restore(force=True)
    assert await files.records() == jobs(15)
    files.lose_store() if name == "records.db" else files.lose_spool()
    with pytest.raises(BackupDamaged, match=refused):
        await files.restore()


def point_elsewhere(manifest: dict[str, Any], outside: Path) -> None:
    manifest["store"]["file"] = str(outside)


def climb_out(manifest: dict[str, Any], outside: Path) -> None:
    manifest["store"]["file"] = f"../../{outside.name}"


def list_another_file(manifest: dict[str, Any], outside: Path) -> None:
    manifest["files"][str(outside)] = manifest["files"]["records.db"]


def list_no_files(manifest: dict[str, Any], _outside: Path) -> None:
    manifest["files"] = {}


def leave_the_spool_out(manifest: dict[str, Any], _outside: Path) -> None:
    del manifest["files"]["spool.db"]


def link_to_another_file(_manifest: dict[str, Any], outside: Path) -> None:
    [copy] = outside.parent.glob("backups/*/records.db")
    copy.unlink()
    copy.symlink_to(outside)


@pytest.mark.parametrize(
    "spoil",
    [point_elsewhere, climb_out, list_another_file, list_no_files, leave_the_spool_out, link_to_another_file],
)
async def test_a_hostile_manifest_leads_to_no_file_that_is_not_verified_and_in_the_backup(
    files: Site, spoil: Callable[[dict[str, Any], Path], None]
) -> None:
    await filled(files)
    [manifest] = files.place.glob("*/manifest.json")
    outside = files.place.parent / "outside.db"
    outside.write_bytes((manifest.parent / "records.db").read_bytes())
    document = json.loads(manifest.read_text())
    spoil(document, outside)
    manifest.write_text(json.dumps(document))
    with pytest.raises(BackupDamaged):
        await files.restore(force=True)
    assert await files.records() == jobs(15)


async def test_a_digest_that_is_not_the_manifests_is_refused(site: Site) -> None:
    await filled(site)
    [manifest] = site.place.glob("*/manifest.json")
    document = json.loads(manifest.read_text())
    document["store"]["digest"] = "0" * 32
    manifest.write_text(json.dumps(document))
    site.lose_store()
    site.lose_spool()
    with pytest.raises(BackupDamaged, match="but the manifest says 7 with"):
        await site.restore()
    assert not (site.state / "spool.db").exists()
    assert site.url.startswith("sqlite") or read_unfinished(site.state) is not None


@pytest.mark.parametrize(("part", "name"), [("store", "record store"), ("spool", "spool")])
async def test_a_backup_of_a_newer_version_is_refused(files: Site, part: str, name: str) -> None:
    await filled(files)
    [manifest] = files.place.glob("*/manifest.json")
    document = json.loads(manifest.read_text())
    document[part]["schema"] = 99
    manifest.write_text(json.dumps(document))
    with pytest.raises(BackupDamaged, match=rf"its {name} has schema 99.*install that version"):
        await files.restore(force=True)


async def test_a_backup_of_another_kind_of_database_is_refused(files: Site, postgres_url: str) -> None:
    await filled(files)
    files.url = postgres_url
    with pytest.raises(RestoreRefused, match="auditord database copy"):
        await files.restore()


async def test_an_incomplete_backup_is_none(files: Site) -> None:
    await filled(files)
    [manifest] = files.place.glob("*/manifest.json")
    manifest.unlink()
    with pytest.raises(NoBackup, match="unfinished: auditord-"):
        await files.restore(force=True)


async def test_an_interrupted_restore_keeps_everybody_out_until_it_is_ended(files: Site) -> None:
    await filled(files)
    [backup] = files.place.glob("auditord-*")
    begin(files.state, Unfinished(str(backup), "before-restore-x", (True, True)))
    with (
        pytest.raises(StoreMismatch, match=r"was interrupted: complete it with `auditord restore .*auditord-2026"),
        running_daemon(files.state.parent, {}),
    ):
        pass
    await files.backup()
    with pytest.raises(RestoreRefused, match="complete that one first"):
        await files.restore()


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., Result]:
    with running_daemon(tmp_path, {"collectors": {"files": {"kind": "files", "folder": str(tmp_path)}}}):
        pass
    return lambda *words: CliRunner().invoke(auditord, ["--config", str(tmp_path / "auditord.json"), *map(str, words)])


def test_the_command_says_what_is_lost_and_what_to_collect(command: Callable[..., Result], tmp_path: Path) -> None:
    assert command("backup", tmp_path / "b").exit_code == 0
    with running_daemon(tmp_path, {"collectors": {"files": {"kind": "files", "folder": str(tmp_path)}}}) as daemon:
        daemon.get("/health_check")
    (tmp_path / "state/records.db").unlink()
    done = command("restore")  # with the last backup that was made
    assert done.exit_code == 0, done.exception
    assert "What clients posted between" in done.output
    assert "auditord collect files" in done.output
    document = json.loads((tmp_path / "auditord.json").read_text())
    document["collectors"]["files"]["enabled"] = False
    (tmp_path / "auditord.json").write_text(json.dumps(document))
    forced = command("restore", tmp_path / "b", "--force")
    assert "to run them before that:" not in forced.output
    assert forced.output.count("put aside") == 2
    assert isinstance(command("restore", tmp_path / "b").exception, RestoreRefused)


def test_it_is_no_business_while_a_daemon_runs(tmp_path: Path) -> None:
    with running_daemon(tmp_path, {}):
        done = CliRunner().invoke(auditord, ["--config", str(tmp_path / "auditord.json"), "restore", str(tmp_path)])
    assert "is in use by process" in str(done.exception)


async def note_run(spool: Spool, task: str, ended: datetime, error: str | None = None) -> None:
    await spool.record_run(RunReport(task, "slurm", ended, timedelta(0), error, 0, 0, {}))


async def test_every_collector_must_have_a_good_run(files: Site) -> None:
    async with files.opened() as (spool, _):
        assert await collectors_behind(spool, ["a", "b"]) == ()
        await note_run(spool, "a", NOW - HOUR)
        note_restore(files.state, NOW)
        assert await collectors_behind(spool, ["a", "b"]) == ["a", "b"]
        await note_run(spool, "a", NOW + HOUR, "sacct is away")
        await note_run(spool, "b", NOW + HOUR)
        assert await collectors_behind(spool, ["a", "b"]) == ["a"]
        await note_run(spool, "a", NOW + HOUR)
        assert await collectors_behind(spool, ["a", "b"]) == []
        forget_restore(files.state)
        assert not (files.state / RESTORED).exists()
        assert await collectors_behind(spool, ["a", "b"]) == ()


async def test_both_ways_of_restoring_are_noted(files: Site) -> None:
    await files.collect(3)
    await files.deliver()
    await files.backup()
    await files.collect(5)
    await files.deliver()
    files.lose_store()
    await files.restore()
    assert (files.state / RESTORED).exists()
    (files.state / RESTORED).unlink()
    await files.restore(force=True)
    assert (files.state / RESTORED).exists()


def sections(collector: dict[str, Any]) -> dict[str, Any]:
    return {"collectors": {"jobs": collector}, "plugins": {"look": {"kind": "open_records", "interval": "1s"}}}


def test_plugins_of_a_daemon_wait(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    (tmp_path / "state").mkdir()
    note_restore(tmp_path / "state", datetime.now(UTC))
    earliest = "2026-01-01T00:00:00Z"  # or its first run begins now, reads nothing, and is a good one
    fails: dict[str, Any] = {"kind": "slurm", "sacct": "false", "meta": [], "earliest_datetime": earliest}
    with running_daemon(tmp_path, sections(fails)) as daemon:
        report = daemon.finish_run("look")
        assert report.skipped == {"after the restore, jobs must run successfully first": 1}, report
        assert report.waits
    jobs.mkdir()
    with running_daemon(tmp_path, sections({"kind": "files", "folder": str(jobs)})) as daemon:
        assert daemon.finish_run("jobs").error is None
        while daemon.finish_run("look").skipped:
            pass
    assert not (tmp_path / "state" / RESTORED).exists()
