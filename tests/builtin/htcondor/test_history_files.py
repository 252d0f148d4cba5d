"""History files and PER_JOB_HISTORY_DIR as sources, in the forms of several versions of HTCondor (written by hand)."""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("classad2", reason="pip install 'auditord[htcondor]'")

from auditord.testing import FakeCollectorContext
from auditord_builtin.htcondor.ads import parse_ad, split_ads
from auditord_builtin.htcondor.collecting import HTCONDOR
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_hookspecs import AuditordError, Batch, InvalidRecord, JobChoice, Produced, Quarantined, Window
from tests.builtin.htcondor.history_player import EPOCH, history_text, job_ad

pytestmark = pytest.mark.anyio

NOW = datetime.fromtimestamp(EPOCH, UTC)
HOUR = timedelta(hours=1)

# A job removed under 8.8 (completion undefined, an expression, a CPU time with a fraction), one completed under 25.
OLD_AND_NEW = f"""\
GlobalJobId = "ap1#41.0#{EPOCH - 9000}"
ClusterId = 41
ProcId = 0
Owner = "1000"
AcctGroup = "group_physics,higgs"
JobStatus = 3
JobUniverse = 5
NumJobStarts = 1
LastMatchTime = {EPOCH - 8000}
EnteredCurrentStatus = {EPOCH - 4000}
CpusProvisioned = 1
RequestMemory = 2048
MemoryProvisioned = ifthenelse(RequestMemory isnt undefined, RequestMemory, 1024)
RemoteUserCpu = 1.234500000000000E+03
RemoteSysCpu = 0.0
Requirements = (TARGET.Memory >= RequestMemory) && (TARGET.Arch == "X86_64")
*** Offset = 0 ClusterId = 41 ProcId = 0 Owner = "1000" CompletionDate = 0
GlobalJobId = "ap1#42.3#{EPOCH - 7000}"
ClusterId = 42
ProcId = 3
Owner = "alice"
VoName = "atlas"
JobStatus = 4
JobUniverse = 5
NumJobStarts = 2
LastMatchTime = {EPOCH - 6000}
CompletionDate = {EPOCH - 3000}
EnteredCurrentStatus = {EPOCH - 3000}
CpusProvisioned = 8
MemoryProvisioned = 16384
GPUsProvisioned = 1
RemoteUserCpu = 20000.0
RemoteSysCpu = 3.0
Factor = real("NaN")
MachineAttrApelSpecs0 = [ HEPSPEC = 1.230000000000000E+01; HEPscore23 = 45.6 ]
*** Offset = 733 ClusterId = 42 ProcId = 3 Owner = "alice" CompletionDate = {EPOCH - 3000}
"""


def config(**options: Any) -> HTCondorConfig:
    return HTCondorConfig.model_validate({"earliest_datetime": NOW - 24 * HOUR, **options})


async def run(chosen: HTCondorConfig, at: FakeCollectorContext) -> list[str]:
    return [record.record_id for record in await at.keep(HTCONDOR.collect(chosen, at))]


def append(path: Path, *clusters: int, **attributes: Any) -> list[str]:
    ads = [job_ad("s1", cluster, **attributes) for cluster in clusters]
    with path.open("a") as file:
        file.write("".join(history_text(ad) for ad in ads))
    return [f"htcondor-{ad['GlobalJobId']}" for ad in ads]


async def test_ads_of_several_versions(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text(OLD_AND_NEW)
    at = FakeCollectorContext(moment=NOW)
    removed, completed = await at.keep(HTCONDOR.collect(config(history_paths=[path]), at))
    assert removed.record_id == f"htcondor-ap1#41.0#{EPOCH - 9000}"
    assert removed.runtime == 4000
    assert [(one.name, one.amount, one.scores) for one in removed.components] == [
        ("Cores", 1, ()),
        ("Memory", 2048, ()),
        ("TotalCPU", 1234, ()),
    ]
    assert (removed.meta or {})["group_id"] == ("group_physics,higgs",)
    assert (removed.meta or {})["user_id"] == ("1000",)
    assert {score.name: score.value for score in completed.components[0].scores} == {
        "HEPSPEC": 12.3,
        "HEPscore23": 45.6,
    }
    assert [one.amount for one in completed.components] == [8, 16384, 20003, 1]


async def test_reading_goes_on_where_it_was_whatever_the_file_is_called_then(tmp_path: Path) -> None:
    path, chosen = tmp_path / "history", config(history_paths=[tmp_path / "history"])
    at = FakeCollectorContext(moment=NOW)
    first = append(path, 1, 2)
    assert await run(chosen, at) == first
    second = append(path, 3)
    with path.open("a") as file:
        file.write("Owner = ")  # HTCondor is in the middle of an ad
    assert await run(chosen, at) == second
    path.write_text(path.read_text().removesuffix("Owner = "))
    third = append(path, 4)
    path.rename(tmp_path / "history.20260329T120000")
    fourth = append(path, 1, end=EPOCH + 5000)  # job numbers begin again
    assert await run(chosen, at) == third + fourth
    at.remembered.clear()  # positions alone must do
    assert await run(chosen, at) == []
    (tmp_path / "history.20260329T120000").unlink()
    assert await run(chosen, at) == []
    assert len(at.checkpoint["files"]) == 1


async def test_what_was_over_before_the_first_run_is_left_out_and_what_comes_late_is_not(tmp_path: Path) -> None:
    path, chosen = tmp_path / "history", config(history_paths=[tmp_path / "history"], earliest_datetime=None)
    at = FakeCollectorContext(moment=NOW + HOUR)
    append(path, 1)
    assert await run(chosen, at) == []
    late = append(path, 2, end=EPOCH - 9 * 86_400)
    assert await run(chosen, at) == late


async def test_what_was_over_before_is_left_out_of_a_path_that_is_added_later(tmp_path: Path) -> None:
    first, second = tmp_path / "history", tmp_path / "ce"
    at = FakeCollectorContext(moment=NOW)
    ids = append(first, 9)
    assert await run(config(history_paths=[first]), at) == ids
    append(second, 1, end=EPOCH - 400 * 86_400)
    chosen, ids = config(history_paths=[first, second]), append(second, 2)
    assert await run(chosen, at) == ids
    late = append(first, 3, end=EPOCH - 9 * 86_400) + append(second, 4, end=EPOCH - 9 * 86_400)
    assert await run(chosen, at) == late


async def test_a_file_system_that_was_not_mounted_for_a_while_is_not_read_again(tmp_path: Path) -> None:
    path, mounted, away = tmp_path / "spool/history", tmp_path / "spool", tmp_path / "away"
    mounted.mkdir()
    at, chosen = FakeCollectorContext(moment=NOW), config(history_paths=[path])
    append(path, 1, end=EPOCH - 400 * 86_400)
    path.rename(mounted / "history.20260101T120000")
    ids = append(path, 2)
    assert await run(chosen, at) == ids
    mounted.rename(away)
    mounted.mkdir()
    for _ in range(2):
        assert await run(chosen, at) == []
    mounted.rmdir()
    away.rename(mounted)
    at.remembered.clear()
    new = append(path, 3)
    assert await run(chosen, at) == new


async def test_pieces_are_durable_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord_builtin.htcondor.history_files._PIECE", 1_500)  # an ad has about 500 bytes
    path, chosen = tmp_path / "history", config(history_paths=[tmp_path / "history"])
    ids = append(path, *range(1, 21))
    at, got = FakeCollectorContext(moment=NOW), list[str]()
    for _ in range(20):  # the daemon dies after two batches, again and again
        batches: Any = HTCONDOR.collect(chosen, at)
        for _ in range(2):
            batch = await anext(batches, None)
            if batch is not None:
                got += [one.record.record_id for one in batch.records if isinstance(one, Produced)]
                at.checkpoint = batch.checkpoint
        await batches.aclose()
    assert got == ids


@pytest.mark.parametrize("size", range(60, 1_400, 37))
async def test_a_file_that_grows_byte_by_byte(tmp_path: Path, size: int) -> None:
    path, whole = tmp_path / "history", tmp_path / "whole"
    ids = append(whole, 1, 2, 3)
    text = whole.read_bytes()
    at, got = FakeCollectorContext(moment=NOW), list[str]()
    for end in (size, size + 1, size + 300, len(text)):
        path.write_bytes(text[:end])
        got += await run(config(history_paths=[path]), at)
        at.remembered.clear()
    assert got == ids


async def test_an_ad_longer_than_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord_builtin.htcondor.history_files._PIECE", 64)
    ids = append(tmp_path / "history", 1, 2)
    assert await run(config(history_paths=[tmp_path / "history"]), FakeCollectorContext(moment=NOW)) == ids


async def test_a_file_whose_first_ad_is_longer_than_a_mebibyte_is_read(tmp_path: Path) -> None:
    """Users can write such ads, and the other jobs of the file must not be missing."""
    path = tmp_path / "history"
    ids = append(path, 1, Arguments="x" * 1_200_000) + append(path, 2)
    (tmp_path / "history.20260101T000000.gz").write_bytes(os.urandom(1_200_000).replace(b"=", b"-"))
    at, chosen = FakeCollectorContext(moment=NOW), config(history_paths=[path])
    assert await run(chosen, at) == ids
    path.rename(tmp_path / "history.20260329T120000")
    at.remembered.clear()
    assert await run(chosen, at) == []


async def test_a_file_that_is_rotated_while_older_ones_are_read_loses_no_job(tmp_path: Path) -> None:
    path, chosen = tmp_path / "history", config(history_paths=[tmp_path / "history"])
    ids = append(tmp_path / "history.20260101T000000", 1, 2, 3) + append(path, 4, 5, 6, 7)
    at = FakeCollectorContext(moment=NOW)

    async def rotated_after_the_first_file() -> AsyncIterator[Batch]:
        async for batch in HTCONDOR.collect(chosen, at):
            yield batch
            if batch.records and path.exists():
                path.rename(tmp_path / "history.20260329T120000")
                ids.extend(append(path, 8, 9))

    with pytest.raises(AuditordError, match="history was rotated while it was read"):
        await at.keep(rotated_after_the_first_file())
    await run(chosen, at)
    made = [one.record.record_id for batch in at.kept for one in batch.records if isinstance(one, Produced)]
    assert sorted(made) == sorted(ids)


async def test_a_constraint_and_a_window(tmp_path: Path) -> None:
    path = tmp_path / "history"
    ids = append(path, 1, end=EPOCH - 3600) + append(path, 2, end=EPOCH - 7200) + append(path, 3, Owner="bob")
    chosen = config(history_paths=[path], constraint='Owner == "alice"')
    at = FakeCollectorContext(moment=NOW)
    assert await run(chosen, at) == ids[:2]
    at.window = Window(NOW - HOUR, NOW)
    assert await run(chosen, at) == ids[:1]
    at.window, at.job = None, JobChoice("2.0")
    assert await run(chosen, at) == ids[1:2]


async def test_what_is_no_ad_is_quarantined_and_the_rest_is_not(tmp_path: Path) -> None:
    path = tmp_path / "history"
    first = append(path, 1)
    with path.open("a") as file:
        file.write("this is no ad\n*** \n")
    second = append(path, 2)
    at = FakeCollectorContext(moment=NOW)
    chosen = config(history_paths=[path])
    assert await run(chosen, at) == first + second
    [broken] = [one for batch in at.kept for one in batch.quarantined]
    assert broken.raw == {"ad": "this is no ad\n"}


async def test_a_file_that_does_not_exist_yet_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chosen, at = config(history_paths=[tmp_path / "history"]), FakeCollectorContext(moment=NOW)
    assert await run(chosen, at) == []
    assert f"{tmp_path / 'history'} does not exist yet" in caplog.text
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    first = append(tmp_path / "history", 1)
    assert await run(chosen, at) == first


async def test_a_file_in_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AuditordError, match="there is no folder"):
        await run(config(history_paths=[tmp_path / "no" / "history"]), FakeCollectorContext(moment=NOW))


async def test_a_folder_of_jobs_is_emptied_once_their_records_are_safe(tmp_path: Path) -> None:
    chosen = config(per_job_history_dir=tmp_path)
    ads = [job_ad("s1", cluster) for cluster in (1, 2)]
    for number, ad in enumerate(ads, start=1):
        (tmp_path / f"history.{number}.0").write_text(ad.printOld())
    (tmp_path / ".history.3.0.tmp").write_text("Own")
    (tmp_path / "history.4.0").write_text("no ad")
    at = FakeCollectorContext(moment=NOW)
    expected = [f"htcondor-{ad['GlobalJobId']}" for ad in ads]
    dry: list[Quarantined] = []
    async for batch in HTCONDOR.collect(chosen, at):  # a dry run keeps nothing
        dry += batch.quarantined
    assert [one.raw for one in dry] == [{"ad": "no ad"}]
    assert await run(chosen, at) == expected
    assert names(tmp_path) == [".history.3.0.tmp", "history.1.0", "history.2.0", "history.4.0"]
    assert max(at.remembered.values()) <= NOW + timedelta(days=31), "or the spool grows with every job"
    at.dry_run = True
    assert await run(chosen, at) == []
    at.dry_run = False
    assert len(names(tmp_path)) == 4
    (tmp_path / "history.1.0").write_text(job_ad("s1", 1, end=EPOCH + 99).printOld())  # another job of that number
    assert len(await run(chosen, at)) == 1
    assert names(tmp_path) == [".history.3.0.tmp", "history.1.0"]
    assert await run(chosen, at) == []
    assert names(tmp_path) == [".history.3.0.tmp"]


def names(folder: Path) -> Sequence[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_file_of_one_job_is_recovered_from_quarantine(tmp_path: Path) -> None:
    assert HTCONDOR.convert is not None
    produced = HTCONDOR.convert(config(per_job_history_dir=tmp_path), {"ad": job_ad("s1", 1).printOld()})
    assert isinstance(produced, Produced)
    with pytest.raises(AuditordError, match="not a ClassAd"):
        HTCONDOR.convert(config(per_job_history_dir=tmp_path), {"ad": "no ad"})


def test_ads_end_at_a_banner() -> None:
    text = b'A = 1\nB = "*** x"\n*** EPOCH ClusterId=1 Owner="x"\n*** \nC = 2\n*** EPOCH ClusterId = 1\n'
    assert list(split_ads(text)) == [b'A = 1\nB = "*** x"\n', b"C = 2\n"]


@pytest.mark.timeout(60)
async def test_a_folder_of_jobs_leads_nowhere_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, elsewhere = tmp_path / "jobs", tmp_path / "history.1.0"
    folder.mkdir()
    elsewhere.write_text("stolen")
    (folder / "history.1.0").symlink_to(elsewhere)
    os.link(elsewhere, folder / "history.2.0")
    os.mkfifo(folder / "history.3.0")
    context = FakeCollectorContext()
    assert await context.keep(HTCONDOR.collect(config(per_job_history_dir=folder), context)) == []
    assert [each for batch in context.kept for each in batch.quarantined] == []
    assert [f"history.{number}.0: " in caplog.text for number in (1, 2, 3)] == [True] * 3
    assert elsewhere.read_text() == "stolen"


@pytest.mark.timeout(60)
async def test_a_fifo_in_place_of_a_history_file_holds_no_run_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "history")
    context = FakeCollectorContext()
    with pytest.raises(AuditordError, match="not a regular file"):
        await context.keep(HTCONDOR.collect(config(history_paths=[tmp_path / "history"]), context))


def torn(path: Path, cut: Callable[[str], str]) -> None:
    """Write jobs 1 to 4, what ``cut`` leaves of job 2's ad and banner, and job 3's after it."""
    texts = [
        history_text(job_ad("s1", cluster, GPUsProvisioned=4 if cluster == 2 else None)) for cluster in (1, 2, 3, 4)
    ]
    texts[1] = cut(texts[1])
    path.write_text("".join(texts))


CUTS: Mapping[str, Callable[[str], str]] = {
    "before the banner": lambda text: text.partition("***")[0],
    "in a line": lambda text: text.partition("***")[0][:-4],
    "in the stars": lambda text: text[: text.index("***") + 2],
    "in the banner": lambda text: text[: text.index("***") + 20],
    "in the banner's text": lambda text: text[: text.index("Owner =", text.index("***")) + 10],
    "in the banner's number": lambda text: text[:-3],
    "before the end of the line": lambda text: text.removesuffix("\n"),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
async def test_an_ad_that_is_cut_off_takes_nothing_of_its_neighbour(tmp_path: Path, cut: Callable[[str], str]) -> None:
    torn(tmp_path / "history", cut)
    at = FakeCollectorContext(moment=NOW)
    records = await at.keep(HTCONDOR.collect(config(history_paths=[tmp_path / "history"]), at))
    broken = [one for batch in at.kept for one in batch.quarantined]
    assert [one.record_id.split("#")[1] for one in records] == ["1.0", "4.0"]
    assert [one.source_id.split("#")[1] for one in broken] == ["2.0", "3.0"]
    for one in broken:
        assert "an ad was truncated" in one.reason
        assert HTCONDOR.convert is not None
        with pytest.raises(InvalidRecord, match="not a ClassAd"):  # a part must not make a record when it is retried
            HTCONDOR.convert(config(), one.raw)


@pytest.mark.parametrize("text", ['{"ClusterId": 1, "clusterid": 2}', "ClusterId = 1\nclusterid = 2\n"])
def test_no_attribute_comes_twice_in_an_ad(text: str) -> None:
    with pytest.raises(InvalidRecord, match="clusterid is repeated"):
        parse_ad(text)
