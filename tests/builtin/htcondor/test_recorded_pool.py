"""Recorded output of a real pool: every figure is that of the ledger in every way of reading; so is the stand-in."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("classad2", reason="pip install 'auditord[htcondor]'")

from auditord.testing import FakeCollectorContext
from auditord_builtin.htcondor.ads import MEMORY, JobAd
from auditord_builtin.htcondor.collecting import HTCONDOR
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import convert_ad
from auditord_builtin.htcondor.evaluation import Evaluator, read_ad
from auditord_builtin.htcondor.output import cut_json, cut_json_lines, parse_separated
from auditord_builtin.htcondor.query import list_columns
from auditord_hookspecs import Batch, Produced
from auditord_hookspecs.outcomes import Converted, Skipped
from tests.builtin.htcondor.history_player import Player, history_text, json_text, one_line, read_ads
from tests.builtin.htcondor.recordings import (
    POISON,
    THRICE,
    WORD,
    LedgerLine,
    columns_asked,
    figures,
    in_history,
    ledger,
    recorded,
    recorded_ads,
)

CONFIG = HTCondorConfig(earliest_datetime=datetime(2026, 11, 1, tzinfo=UTC))
NOW = datetime(2026, 12, 1, tzinfo=UTC)
LONG = sorted({path.stem for path in Path(__file__).with_name("recorded").glob("long_*.out")})


def outcome(ad: JobAd) -> LedgerLine:
    """An ad as the ledger writes it."""
    classified = convert_ad(CONFIG, ad)
    job = ad.row["GlobalJobId"]
    if isinstance(classified, Converted):
        return LedgerLine(job, "record", figures(classified.record))
    return LedgerLine(job, classified.reason if isinstance(classified, Skipped) else "quarantined", ("",) * 7)


def lost_nodes(job: str) -> bool:
    """Tell one of the jobs that were recorded with -af before the column was asked for that shows they ran."""
    return job.startswith("ap1@example.org#23.")


@pytest.mark.parametrize("name", ["af_separated_local_all", "af_separated_remote_weird", "af_removed_never_started"])
def test_separated_columns_give_the_figures_of_the_ledger(name: str) -> None:
    ads = parse_separated(recorded(f"{name}.out"), columns_asked(name), WORD).ads
    truth = ledger(name)
    assert {ad.row["GlobalJobId"] for ad in ads} == set(truth)
    assert len(ads) == len(truth)
    for ad in ads:
        if not lost_nodes(ad.row["GlobalJobId"]):
            # These calls did not ask for the memory, which the others had.
            assert outcome(replace(ad, row={**ad.row, MEMORY: "4096"})) == truth[ad.row["GlobalJobId"]]


# The separated form cannot tell these texts from nothing.
TEXTS = {"ap1@example.org#12.3#1795331711": "undefined", "ap1@example.org#12.4#1795331711": "error"}


@pytest.mark.parametrize(("name", "cut"), [("json_local_weird", cut_json), ("jsonl_local_weird", cut_json_lines)])
def test_json_gives_the_figures_of_the_ledger(name: str, cut: Any) -> None:
    with Evaluator() as evaluator:
        ads = [read_ad(evaluator, text, list_columns(CONFIG)) for text in cut(recorded(f"{name}.out"))]
    truth = ledger("af_separated_remote_weird")
    assert len(ads) == len(truth)
    for ad in ads:
        job = ad.row["GlobalJobId"]
        expected = (*truth[job].figures[:-1], TEXTS.get(job, truth[job].figures[-1]))
        assert outcome(ad) == LedgerLine(job, "record", expected)


def test_bytes_that_are_no_text_are_kept_as_replacements() -> None:
    with Evaluator() as evaluator:
        ads = [
            read_ad(evaluator, text, list_columns(CONFIG)) for text in cut_json_lines(recorded("jsonl_local_bytes.out"))
        ]
    assert [ad.row["VoName"] for ad in ads] == ["ctl\x01\x02x", "bad\ufffd\ufffdbytes"]


def records_of(batches: Sequence[Batch]) -> dict[str, tuple[str, ...]]:
    """The first record of each job, as the record store keeps it."""
    found: dict[str, tuple[str, ...]] = {}
    for record in (one.record for batch in batches for one in batch.records if isinstance(one, Produced)):
        found.setdefault(record.record_id.removeprefix("htcondor-"), figures(record))
    return found


@pytest.mark.anyio
async def test_history_files_give_the_figures_of_the_ledger(tmp_path: Path) -> None:
    ads = [ad for name in LONG for ad in reversed(recorded_ads(name))]
    (tmp_path / "history").write_text(recorded("history_file_head.out").decode().rpartition("*** ")[0] + "*** \n")
    with (tmp_path / "history").open("a") as file:
        file.write(in_history(*ads))
    context = FakeCollectorContext(moment=NOW)
    await context.keep(HTCONDOR.collect(CONFIG.model_copy(update={"history_paths": (tmp_path / "history",)}), context))
    check(context.kept, ledger(*LONG, "history_file_head"))


@pytest.mark.anyio
async def test_files_of_single_jobs_give_the_figures_of_the_ledger(tmp_path: Path) -> None:
    for name in LONG:
        for number, ad in enumerate(reversed(recorded_ads(name))):
            (tmp_path / f"history.{name}.{number}").write_text(ad)
    context = FakeCollectorContext(moment=NOW)
    await context.keep(HTCONDOR.collect(CONFIG.model_copy(update={"per_job_history_dir": tmp_path}), context))
    check(context.kept, ledger(*LONG))


def check(batches: Sequence[Batch], truth: Mapping[str, LedgerLine]) -> None:
    """Compare every figure with the ledger."""
    assert records_of(batches) == {job: one.figures for job, one in truth.items() if one.outcome == "record"}
    quarantined = {one.source_id for batch in batches for one in batch.quarantined}
    assert quarantined == {job for job, one in truth.items() if one.outcome == "quarantined"}
    skipped = sum(count for batch in batches for reason, count in batch.skipped.items() if "again" not in reason)
    assert skipped == len(truth) - len(quarantined) - len(records_of(batches))


def test_the_ad_that_ends_the_library_is_kept_whole() -> None:
    [text] = recorded_ads(POISON)
    with Evaluator() as evaluator:
        [ad] = (read_ad(evaluator, text, list_columns(CONFIG)) for text in [text])
    assert ad.text == text
    assert ad.reason is not None
    assert "SIGSEGV" in ad.reason
    assert ad.row["GlobalJobId"] == "ap1@example.org#10.0#1795332909"


def test_the_stand_in_prints_what_the_real_program_printed(tmp_path: Path) -> None:
    path = tmp_path / "local.history"
    path.write_text(in_history(*recorded_ads("long_completed"), *recorded_ads(THRICE)))
    first, *_ = ads = read_ads(path)
    assert history_text(first).partition("***")[0].split("\n") == sorted_by_name(recorded_ads("long_completed")[0])
    assert len(ads) == 4
    output, complaint, code = Player(tmp_path).run(["-forwards", "-since", "1.0", "-af", "ClusterId"])
    assert (output, complaint, code) == ("", recorded("err_forwards_since.err").decode(), 1)
    _, complaint, code = Player(tmp_path).run(["-file", "/nonexistent/history", "-af", "GlobalJobId"])
    assert (complaint, code) == (recorded("err_file_missing.err").decode(), 1)
    for option, expected in (("-json", "[\n]\n"), ("-jsonl", "")):
        assert Player(tmp_path).run(["-name", "none", option]) == (expected, "", 0)


def sorted_by_name(ad: str) -> list[str]:
    return [*sorted(ad.strip().split("\n"), key=lambda line: line.split(" = ")[0].lower()), ""]


def test_the_stand_in_prints_json_as_the_real_program_did(tmp_path: Path) -> None:
    """The job whose ad was recorded in all forms: 1.1 is the second one of the history file."""
    path = tmp_path / "local.history"
    path.write_bytes(recorded("history_file_head.out").rpartition(b"*** ")[0] + b"*** \n")
    ad = read_ads(path)[1]
    assert f"[\n{json_text(ad)}]\n" == recorded("json_full_one.out").decode()
    assert one_line(json_text(ad)) + "\n" == recorded("jsonl_full_one.out").decode()
