"""A hostile user of the folder gains nothing but records: the folder is theirs, and what the daemon does is not."""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from auditord.testing import FakeCollectorContext, make_record
from auditord_builtin.files.collecting import FILES
from auditord_builtin.files.places import Results
from auditord_builtin.files.reading import FilesConfig
from auditord_hookspecs import AuditordError
from auditord_hookspecs.folders import PrivateFolder, SharedFolder
from auditord_hookspecs.wire import encode_record
from tests.other_user import as_nobody, give_to_nobody, needs_root

pytestmark = [pytest.mark.anyio, needs_root]

NOW: Final = datetime(2099, 1, 1, tzinfo=UTC)
TOKENS: Final = '{"tokens": [{"name": "mine", "roles": ["admin"]}]}'


class Site:
    """A daemon's state folder, and a drop folder that another user owns."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.state.mkdir()
        self.drop = give_to_nobody(folder / "drop")
        self.instance_dir = self.state / "instances/files"
        self.instance_dir.mkdir(parents=True, mode=0o700)
        self.context = FakeCollectorContext(moment=NOW, folder=self.instance_dir)

    def attack(self, script: str) -> None:
        as_nobody(self.drop, script)

    async def run(self, **options: Any) -> list[str]:
        config = FilesConfig.model_validate({"folder": self.drop, **options})
        return [record.record_id for record in await self.context.keep(FILES.collect(config, self.context))]

    def found(self, place: str) -> list[str]:
        return sorted(path.name for path in (self.instance_dir / place).iterdir())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


LINE: Final = encode_record(make_record("1")).decode()


@pytest.mark.parametrize("beside", [False, True], ids=["default", "results beside the files"])
async def test_a_link_in_place_of_a_sub_folder_leads_nowhere(site: Site, *, beside: bool) -> None:
    site.attack(f"ln -s {site.state} failed; ln -s {site.state} done; echo '{TOKENS}' > tokens.json")
    if beside:
        with pytest.raises(AuditordError, match="done: is a link or not a folder: remove it"):
            await site.run(results=site.drop)
    else:
        await site.run()
        assert site.found("failed") == ["tokens.json", "tokens.json.reason"]
    assert sorted(path.name for path in site.state.iterdir()) == ["instances"]


@pytest.mark.parametrize("beside", [False, True], ids=["default", "results beside the files"])
async def test_a_sub_folder_of_another_user_is_not_written_to(site: Site, *, beside: bool) -> None:
    tokens = site.state / "tokens.json"
    tokens.write_text("{}")
    site.attack(f"mkdir quarantine; ln -s {tokens} quarantine/.x.ndjson.part; echo '{TOKENS}' > x.ndjson")
    if beside:
        with pytest.raises(AuditordError, match=r"quarantine: belongs to user nobody.*: remove it"):
            await site.run(results=site.drop)
    else:
        await site.run()
        assert site.found("quarantine") == ["x.ndjson"]
    assert tokens.read_text() == "{}"


async def test_a_sub_folder_that_others_may_write_is_refused(site: Site) -> None:
    (site.drop / "failed").mkdir()
    (site.drop / "failed").chmod(0o777)
    with pytest.raises(AuditordError, match=r"failed: other users can write to it: .*chmod go-w"):
        await site.run(results=site.drop)


@pytest.mark.timeout(60)
async def test_only_a_regular_file_of_one_name_is_read(site: Site, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(LINE.replace('"1"', '"secret"') + "\n")
    os.link(secret, site.drop / "hard.ndjson")
    site.attack(f"ln -s {secret} soft.ndjson; mkfifo pipe.ndjson; mkdir folder.ndjson; echo '{LINE}' > ok.ndjson")
    with pytest.raises(AuditordError, match=r"hard\.ndjson: has other names"):
        await site.run()
    assert [each.record_id for batch in site.context.kept for each in batch.records] == ["1"]  # type: ignore[union-attr]
    assert site.found("done") == ["ok.ndjson"]
    assert {path.name for path in site.drop.iterdir()} == {"hard.ndjson", "soft.ndjson", "pipe.ndjson", "folder.ndjson"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("swapped", ["ln -s {secret} x.ndjson", "mkfifo x.ndjson", "ln -s . x.ndjson"])
async def test_what_takes_the_place_of_a_file_while_it_is_read_is_neither_read_nor_lost(
    site: Site, tmp_path: Path, swapped: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("stolen\n")
    (site.drop / "x.ndjson").write_text("".join(f"{_line(number)}\n" for number in range(1_500)))
    with pytest.raises(AuditordError, match=r"x\.ndjson: is (a link|not a regular file)"):  # noqa: PT012 the run itself
        async for _ in FILES.collect(FilesConfig(folder=site.drop), site.context):
            site.attack(f"mv x.ndjson y.part; {swapped.format(secret=secret)}")
    texts = [path.read_text() for path in site.instance_dir.rglob("*") if path.is_file()]
    assert not any("stolen" in text for text in texts)
    assert secret.read_text() == "stolen\n"
    assert {path.name for path in site.drop.iterdir()} == {"x.ndjson", "y.part"}


def _line(number: int) -> str:
    return encode_record(make_record(str(number))).decode()


async def test_one_users_file_that_cannot_be_kept_does_not_stop_the_others(site: Site) -> None:
    site.attack(f"printf x > \"$(printf 'bad\\377.ndjson')\"; echo '{LINE}' > ok.ndjson")
    with pytest.raises(AuditordError, match="1 file stays in place"):
        await site.run()
    assert site.found("done") == ["ok.ndjson"]


@pytest.mark.parametrize("name", ["n" * 248 + ".ndjson", "é" * 124 + ".ndjson", "n." + "s" * 253])
async def test_files_with_the_longest_names_are_read_and_kept(site: Site, name: str) -> None:
    is_of_records = name.endswith(".ndjson")
    for number in (1, 2):  # the second file of a name gets another one
        (site.drop / name).write_text(f"{_line(number)}\nbroken\n")
        assert await site.run() == ([str(number)] if is_of_records else [])
    folder = "done" if is_of_records else "failed"
    kept = [each for each in (site.instance_dir / folder).iterdir() if each.read_text().startswith('{"record_id"')]
    assert len(kept) == 2
    assert name in {each.name for each in kept}
    assert [path for path in site.drop.iterdir() if path.is_file()] == []


async def test_a_file_of_no_year_does_not_stop_the_others(site: Site) -> None:
    """The time is clamped on some file systems."""
    old = LINE.replace('"1"', '"old"')
    site.attack(f"echo '{old}' > old.ndjson; touch -d @-99999999999999 old.ndjson; echo '{LINE}' > ok.ndjson")
    site.attack("touch -d @99999999999999 future.ndjson")
    with pytest.raises(AuditordError, match=r"1 file stays in place: \S+/future.ndjson is dated in the future"):
        await site.run()
    assert site.found("done") == ["ok.ndjson", "old.ndjson"]


async def test_a_folder_that_holds_the_daemons_own_files_is_no_drop_folder(site: Site) -> None:
    with pytest.raises(AuditordError, match="the daemon's own files"):
        await site.run(folder=site.state)


@pytest.mark.parametrize("name", ["x.ndjson", f"{'n' * 55}.{'n' * 192}.ndjson"])  # the last 200 bytes begin with a dot
async def test_a_file_that_takes_the_name_in_the_last_moment_is_kept_and_read(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (site.drop / name).write_text(_line(1) + "\n")
    take_out = SharedFolder.take_out

    def overtaken(folder: SharedFolder, name: str, known: str) -> bool:
        site.attack(f"echo '{_line(2)}' > new.part; mv new.part {name}")
        return take_out(folder, name, known)

    monkeypatch.setattr(SharedFolder, "take_out", overtaken)
    assert await site.run() == ["1"]
    monkeypatch.undo()
    assert site.found("done") == []
    assert await site.run() == ["2"]
    assert [path for path in site.drop.iterdir() if path.is_file()] == []


async def test_a_long_name_that_a_killed_daemon_was_taking_out_is_read_again(site: Site) -> None:
    (site.drop / f".taken-0123456789abcdef-{'n' * 224}.ndjson").write_text(_line(1) + "\n")
    assert await site.run() == ["1"]
    assert [path for path in site.drop.iterdir() if path.is_file()] == []


async def test_what_a_killed_daemon_was_taking_out_is_read_again(site: Site) -> None:
    (site.drop / ".taken-0123456789abcdef-x.ndjson").write_text(_line(1) + "\n")
    assert await site.run() == ["1"]
    [name] = site.found("done")
    assert re.fullmatch(r"x\.[0-9a-f]{16}\.ndjson", name)


async def test_a_file_that_is_removed_while_it_is_put_away_is_in_done(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.attack(f"echo '{LINE}' > x.ndjson")
    take_out = SharedFolder.take_out

    def overtaken(folder: SharedFolder, name: str, known: str) -> bool:
        site.attack("rm x.ndjson")
        return take_out(folder, name, known)

    monkeypatch.setattr(SharedFolder, "take_out", overtaken)
    assert await site.run() == ["1"]
    assert site.found("done") == ["x.ndjson"]


async def test_a_mark_that_is_not_ours_stays_where_it_is(site: Site) -> None:
    site.attack(
        f"touch .taken- .taken-x; echo '{LINE}' > ok.ndjson; echo 1 > .taken-2026-june.csv; echo 2 > june.2026.csv"
    )
    site.attack("echo 3 > .taken-0123456789ABCDEF-y.csv; echo record_id,start_time > june.2026.csv")
    assert await site.run() == ["1"]
    assert site.found("done") == ["june.2026.csv", "ok.ndjson"]
    names = {".taken-", ".taken-x", ".taken-2026-june.csv", ".taken-0123456789ABCDEF-y.csv"}
    assert {path.name for path in site.drop.iterdir()} == names


@pytest.mark.timeout(60)
@pytest.mark.parametrize("size", ["10T", "50G"])
async def test_a_huge_file_stays_and_the_others_are_collected(site: Site, size: str) -> None:
    site.attack(f"truncate -s {size} huge.ndjson; touch -d @0 huge.ndjson; echo '{LINE}' > ok.ndjson")
    with pytest.raises(
        AuditordError, match=r"1 file stays in place: \S+/huge.ndjson has \d+ bytes: split it into files of at most"
    ):
        await site.run()
    assert site.found("done") == ["ok.ndjson"]


async def test_each_owner_has_a_turn(site: Site) -> None:
    for number in range(3):
        site.attack(f"echo '{_line(number)}' > {number}.ndjson; touch -d @{number} {number}.ndjson")
    (site.drop / "mine.ndjson").write_text(_line(9) + "\n")
    assert await site.run() == ["0", "9", "1", "2"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("line", ["", "x"])
async def test_lines_without_a_record_make_few_batches(site: Site, line: str) -> None:
    site.attack(f"yes '{line}' | head -n 300000 > x.ndjson; echo '{LINE}' >> x.ndjson")
    assert await site.run() == ["1"]
    assert len(site.context.kept) < 8


@pytest.mark.timeout(60)
async def test_a_file_without_room_stays_and_the_others_are_collected(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditord_builtin.files.places.LARGEST_FILE", 1 << 62)
    site.attack(f"truncate -s 10T huge.ndjson; touch -d @0 huge.ndjson; echo '{LINE}' > ok.ndjson")
    with pytest.raises(AuditordError, match=r"1 file stays in place: \S+: no room for the \d+ bytes that huge.ndjson"):
        await site.run()
    assert site.found("done") == ["ok.ndjson"]


@pytest.mark.timeout(60)
async def test_holes_stay_holes(site: Site) -> None:
    site.attack(f"echo '{LINE}' > x.ndjson; truncate -s 100M x.ndjson; echo >> x.ndjson; echo '{_line(2)}' >> x.ndjson")
    assert await site.run() == ["1", "2"]
    copy = site.instance_dir / "done/x.ndjson"
    assert copy.stat().st_size > 100 << 20
    assert copy.stat().st_blocks * 512 < 1 << 20
    assert copy.read_bytes().strip(b"\0\n").endswith(_line(2).encode())
    [entry] = [each for batch in site.context.kept for each in batch.quarantined]
    assert len(json.dumps(entry.raw)) < 1_000


async def test_two_collectors_do_not_share_results(site: Site) -> None:
    site.attack(f"echo '{LINE}' > x.ndjson")
    with Results.opened(site.instance_dir) as results:
        results.claim()
        with pytest.raises(AuditordError, match="another collector uses it: set `results`"):
            await site.run()
    assert await site.run() == ["1"]


async def test_what_does_not_fit_stays_and_the_reason_is_reported(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.attack(f"echo '{LINE}' > x.ndjson")

    def almost_full(_: PrivateFolder) -> int:
        return 1_000

    monkeypatch.setattr(PrivateFolder, "room", almost_full)
    with pytest.raises(AuditordError, match=r"no room for the .* bytes that x.ndjson may need"):
        await site.run()
    assert (site.drop / "x.ndjson").exists()
