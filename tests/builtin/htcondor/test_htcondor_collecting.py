from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("classad2", reason="pip install 'auditord[htcondor]'")

from auditord.testing import FakeCollectorContext
from auditord_builtin.htcondor.collecting import HTCONDOR
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_hookspecs import AuditordError, CommandFailed, JobChoice, Produced, Window
from tests.builtin.htcondor.history_player import EPOCH, Player

pytestmark = pytest.mark.anyio

NOW = datetime.fromtimestamp(EPOCH, UTC)
HOUR = timedelta(hours=1)
FEWEST_READ = "auditord_builtin.htcondor.reading._FEWEST_READ"


@pytest.fixture
def pool(tmp_path: Path) -> Player:
    return Player(tmp_path)


def config(**options: Any) -> HTCondorConfig:
    return HTCondorConfig.model_validate({"schedd_names": ["s1"], "earliest_datetime": NOW - 24 * HOUR, **options})


def context(pool: Player, **options: Any) -> FakeCollectorContext:
    def play(argv: Sequence[str]) -> bytes:
        output, complaint, code = pool.run(argv[1:])
        if code:
            raise CommandFailed(f"exit code {code}: {complaint}")
        return output.encode()

    return FakeCollectorContext(moment=NOW, commands=play, **options)


async def run(chosen: HTCondorConfig, at: FakeCollectorContext) -> list[str]:
    return [record.record_id for record in await at.keep(HTCONDOR.collect(chosen, at))]


async def run_and_fail(chosen: HTCondorConfig, at: FakeCollectorContext) -> tuple[list[str], str]:
    before = len(at.kept)
    with pytest.raises(CommandFailed) as caught:
        await run(chosen, at)
    records = [one for batch in at.kept[before:] for one in batch.records]
    return [one.record.record_id for one in records if isinstance(one, Produced)], str(caught.value)


@pytest.mark.parametrize("output", ["separated", "json", "jsonl"])
async def test_a_run_accounts_for_what_ended_and_the_next_adds_nothing(pool: Player, output: str) -> None:
    ids = [pool.add("s1", number, end=EPOCH - 100 + number) for number in (1, 2, 3)]
    at = context(pool)
    assert await run(config(output=output), at) == [f"htcondor-{job}" for job in ids]
    assert await run(config(output=output), at) == []
    new = pool.add("s1", 4)
    assert await run(config(output=output), at) == [f"htcondor-{new}"]
    assert at.progress == 1.0


@pytest.mark.parametrize("output", ["separated", "json", "jsonl"])
async def test_a_record_is_that_of_auditors_collector(pool: Player, output: str) -> None:
    specs = {"HEPSPEC": 12.3, "HEPscore23": 45.6}
    pool.add("s1", 7, MachineAttrApelSpecs0=specs, GPUsProvisioned=2, Owner="1000", end=EPOCH)
    at = context(pool)
    at.moment += HOUR
    [record] = await at.keep(HTCONDOR.collect(config(output=output), at))
    assert record.record_id == f"htcondor-s1#7.0#{EPOCH - 7200}"
    assert (record.start_time, record.stop_time) == (NOW - HOUR, NOW)
    amounts = {component.name: component.amount for component in record.components}
    assert amounts == {"Cores": 4, "Memory": 8192, "TotalCPU": 103, "GPU": 2}
    assert {score.name: score.value for score in record.components[0].scores} == specs
    assert record.meta == {
        "user": ("1000",),
        "group": ("atlas",),
        "submithost": ("s1",),
        "site": ("NOT_CONFIGURED",),
        "user_id": ("1000",),
        "group_id": ("atlas",),
        "site_id": ("NOT_CONFIGURED",),
    }


async def test_the_first_run_without_a_date_begins_now(pool: Player) -> None:
    pool.add("s1", 1, end=EPOCH - 60)
    at = context(pool)
    assert await run(config(earliest_datetime=None), at) == []
    late = pool.add("s1", 2, end=EPOCH - 3 * 86_400)  # it was over long ago, and stayed in the queue until now
    assert await run(config(earliest_datetime=None), at) == [f"htcondor-{late}"]


async def test_the_first_run_takes_late_jobs_too(pool: Player) -> None:
    pool.add("s1", 1, end=EPOCH - 50 * 3600)
    first = pool.add("s1", 2, end=EPOCH - 5 * 3600)
    late = pool.add("s1", 3, end=EPOCH - 40 * 3600)
    assert await run(config(), context(pool)) == [f"htcondor-{first}", f"htcondor-{late}"]


async def test_one_schedd_that_fails_stops_no_other(pool: Player) -> None:
    one, two = pool.add("s1", 1, end=EPOCH - 60), pool.add("s2", 1, end=EPOCH - 60)
    at, chosen = context(pool), config(schedd_names=["s1", "s2"])
    pool.disturb(s1={"fail": True})
    got, reason = await run_and_fail(chosen, at)
    assert got == [f"htcondor-{two}"]
    assert "1 of 2 schedds: s1: " in reason
    pool.disturb()
    assert await run(chosen, at) == [f"htcondor-{one}"]


@pytest.mark.parametrize(
    ("limit", "remedy"),
    [
        ("timed_out", "option query_timeout"),
        ("printed_too_much", "read the files of the history with history_paths"),
    ],
)
async def test_an_exceeded_limit_has_a_remedy(limit: str, remedy: str) -> None:
    """The first run reads the whole history, which may be too much."""

    reached: dict[str, Any] = {limit: True}

    def fail(_: Sequence[str]) -> bytes:
        raise CommandFailed("condor_history was killed", **reached)

    at = FakeCollectorContext(moment=NOW, commands=fail)
    assert f"s1: condor_history was killed ({remedy})" in (await run_and_fail(config(), at))[1]


async def test_a_capped_answer_never_moves_the_checkpoint(pool: Player) -> None:
    at = context(pool)
    pool.add("s1", 1)
    pool.add("s1", 2)
    await run(config(), at)
    ids = [f"htcondor-{pool.add('s1', number)}" for number in range(3, 13)]
    position = at.checkpoint["schedds"]["s1"]
    pool.disturb(s1={"cap": 4})
    got, reason = await run_and_fail(config(), at)
    assert got == ids[-4:]
    assert "HISTORY_HELPER_MAX_HISTORY" in reason
    assert at.checkpoint["schedds"]["s1"] == position
    pool.disturb()
    assert await run(config(), at) == ids[:-4]


async def test_jobs_that_stayed_in_the_queue_for_days_do_not_hide_a_gap(
    pool: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = context(pool)
    pool.add("s1", 1)
    await run(config(), at)
    at.moment += HOUR
    ids = [f"htcondor-{pool.add('s1', number)}" for number in range(2, 12)]
    ids += [f"htcondor-{pool.add('s1', number, end=EPOCH - 5 * 86_400 + number)}" for number in range(12, 132)]
    pool.disturb(s1={"cap": 110})
    monkeypatch.setattr(FEWEST_READ, 110)
    got, _ = await run_and_fail(config(), at)
    pool.disturb()
    assert sorted([*got, *await run(config(), at)]) == sorted(ids)


@pytest.mark.parametrize("old", [False, True])
async def test_a_first_answer_at_the_limit_is_not_taken_for_the_whole_history(
    pool: Player, monkeypatch: pytest.MonkeyPatch, *, old: bool
) -> None:
    ids = [f"htcondor-{pool.add('s1', number, end=EPOCH - 600 + number)}" for number in range(1, 13)]
    at, chosen = context(pool), config()
    monkeypatch.setattr(FEWEST_READ, 10)
    pool.disturb(s1={"cap": 10, "old": old})
    got, _ = await run_and_fail(chosen, at)
    assert got == ids[2:]
    assert at.checkpoint["schedds"]["s1"]["until"] is None
    pool.disturb(s1={"old": old})
    monkeypatch.setattr(FEWEST_READ, 100)
    assert await run(chosen, at) == ids[:2]


async def test_a_limited_answer_is_enough_if_its_oldest_jobs_were_over_long_before(
    pool: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 151):
        pool.add("s1", number, end=EPOCH - 72 * 3600 + number)
    new = pool.add("s1", 151, end=EPOCH - 60)
    pool.disturb(s1={"cap": 120, "old": True})
    monkeypatch.setattr(FEWEST_READ, 120)
    assert await run(config(), context(pool)) == [f"htcondor-{new}"]


async def test_answers_that_are_cut_anywhere_move_nothing(pool: Player) -> None:
    at = context(pool)
    await run(config(), at)
    for number in range(1, 6):
        pool.add("s1", number)
    position = at.checkpoint["schedds"]["s1"]
    for output in ("separated", "json", "jsonl"):
        for fault in ({"cut": 0.31}, {"cut": 0.999}, {"lines": 2}):
            pool.disturb(s1=fault)
            await run_and_fail(config(output=output), at)
            assert at.checkpoint["schedds"]["s1"] == position


async def test_a_history_that_was_rotated_or_begun_anew_is_read_whole(
    pool: Player, caplog: pytest.LogCaptureFixture
) -> None:
    at = context(pool)
    for number in range(1, 61):
        pool.add("s1", number)
    at.moment += HOUR
    assert len(await run(config(), at)) == 60
    (pool.folder / "s1.history").unlink()
    got, reason = await run_and_fail(config(), at)
    assert (got, "its history is empty, but was not" in reason) == ([], True)
    again = [f"htcondor-{pool.add('s1', number, end=EPOCH + 4000)}" for number in (1, 2)]  # the same job numbers
    assert await run(config(), at) == again
    assert "jobs may be missing" in caplog.text


async def test_removed_jobs_count_whatever_the_version_says_of_their_completion(pool: Player) -> None:
    for number, completed in enumerate((None, 0), start=1):
        pool.add("s1", number, CompletionDate=completed, EnteredCurrentStatus=EPOCH - 30, JobStatus=3)
    at = context(pool)
    records = await at.keep(HTCONDOR.collect(config(), at))
    assert [record.stop_time for record in records] == [NOW - timedelta(seconds=30)] * 2


async def test_jobs_that_held_no_slot_are_skipped_with_the_reason(pool: Player) -> None:
    pool.add("s1", 1, end=EPOCH - 9, NumJobStarts=0)
    pool.add("s1", 2, end=EPOCH - 8, LastMatchTime=None, JobCurrentStartDate=None)
    pool.add("s1", 3, end=EPOCH - 7, JobUniverse=7, LastMatchTime=None)
    pool.add("s1", 4, end=EPOCH - 6, JobStatus=3)
    pool.add("s1", 5, end=EPOCH - 5, Owner="bob")
    at = context(pool)
    assert await run(config(job_status=[4], constraint='Owner == "alice"'), at) == []
    skipped = at.kept[-2].skipped
    assert skipped == {"never started": 2, "ran on the submit host (scheduler or local universe)": 1, "filtered out": 2}
    assert await run(config(), at) == []


async def test_users_texts_shift_no_columns(pool: Player) -> None:
    texts = ["a,b", 'x "y" undefined', "two  spaces ", "*** x = 1", "1_000", "nan", "ü"]
    for number, text in enumerate(texts, start=1):
        pool.add("s1", number, Note=text, end=EPOCH - 60)
    rule = {"name": "note", "key": "Note", "key_type": "String"}
    for output in ("separated", "json"):
        at = context(pool)
        records = await at.keep(HTCONDOR.collect(config(output=output, meta=[rule]), at))
        assert [(record.meta or {})["note"] for record in records] == [(text,) for text in texts]


async def test_a_group_that_is_too_long_costs_the_label_and_not_the_record(pool: Player) -> None:
    pool.add("s1", 1, VoName="x" * 1_025, AcctGroup="physics", end=EPOCH - 60)
    at = context(pool)
    [record] = await at.keep(HTCONDOR.collect(config(), at))
    assert {"group_id", "group"}.isdisjoint(record.meta or {})
    assert (record.meta or {})["user_id"] == ("alice",)
    left_out = [(each.name, each.label) for batch in at.kept for each in batch.left_out]
    assert left_out == [("group_id", True), ("group", True)]


@pytest.mark.parametrize(
    ("cpu", "memory", "seconds", "expected"),
    [("0.0", 0, 60, None), ("0.0", None, 60, None), ("0.0", 4_096, 60, 0), ("0.0", 0, 59, 0), ("0.4", 0, 60, 0)],
)
async def test_cpu_time_of_zero_is_unknown_where_the_job_was_never_looked_at(
    pool: Player, cpu: str, memory: int | None, seconds: int, expected: int | None
) -> None:
    times = {"LastMatchTime": EPOCH - 60 - seconds, "end": EPOCH - 60}
    pool.add("s1", 1, RemoteUserCpu=float(cpu), RemoteSysCpu=0.0, ResidentSetSize=memory, **times)
    at = context(pool)
    [record] = await at.keep(HTCONDOR.collect(config(), at))
    amounts = {component.name: component.amount for component in record.components}
    assert amounts.get("TotalCPU") == expected
    assert [each.name for batch in at.kept for each in batch.left_out] == ([] if expected == 0 else ["TotalCPU"])
    again = context(pool)
    [needed] = await again.keep(HTCONDOR.collect(config(components="auditor"), again))
    assert {component.name for component in needed.components} >= {"TotalCPU"}


async def test_memory_of_zero_is_unknown(pool: Player) -> None:
    pool.add("s1", 1, end=EPOCH - 60, ResidentSetSize=0)
    pool.add("s1", 2, end=EPOCH - 50, ResidentSetSize=7)
    peak = {"name": "MaxRSS", "key": "ResidentSetSize", "factor": "1024"}
    for optional, expected in ((True, [[], [7_168]]), (False, [[0], [7_168]])):
        at = context(pool)
        records = await at.keep(HTCONDOR.collect(config(components=[{**peak, "optional": optional}]), at))
        assert sorted([component.amount for component in record.components] for record in records) == expected


async def test_numbers_are_matched_as_text_and_read_in_every_form(pool: Player) -> None:
    pool.add("s1", 1, end=EPOCH - 60, ExitCode=137, RemoteUserCpu=1.5e12, Factor=float("nan"))
    rules: dict[str, Any] = {
        "meta": [{"name": "killed", "value": "yes", "only_if": {"key": "ExitCode", "matches": "^137$"}}],
        "components": [
            {"name": "Big", "key": "RemoteUserCpu", "scores": [{"name": "F", "key": "Factor"}]},
            {"name": "Nan", "key": "Factor", "optional": True},
        ],
    }
    at = context(pool)
    [record] = await at.keep(HTCONDOR.collect(config(**rules), at))
    assert (record.meta or {})["killed"] == ("yes",)
    assert [(one.name, one.amount, one.scores) for one in record.components] == [("Big", 1_500_000_000_000, ())]


async def test_one_broken_job_is_quarantined_and_recovered_by_another_configuration(pool: Player) -> None:
    good = pool.add("s1", 1, end=EPOCH - 60)
    pool.add("s1", 2, end=EPOCH - 50, CpusProvisioned=None)
    pool.add("s1", 3, end=EPOCH - 40, CompletionDate=None, EnteredCurrentStatus=None)
    pool.add("s1", 4, end=EPOCH - 40, GlobalJobId=None)
    at = context(pool)
    assert await run(config(), at) == [f"htcondor-{good}"]
    broken = {one.source_id: one for batch in at.kept for one in batch.quarantined}
    assert sorted(one.reason[:30] for one in broken.values()) == [
        "component Cores: CpusProvision",
        "the ad has no CompletionDate a",
        "the ad has no GlobalJobId",
    ]
    assert HTCONDOR.convert is not None
    [entry] = [one for one in broken.values() if "Cores" in one.reason]
    mended = HTCONDOR.convert(config(components=[{"name": "Memory", "key": "MemoryProvisioned"}]), entry.raw)
    assert isinstance(mended, Produced)
    with pytest.raises(AuditordError, match="Cores"):
        HTCONDOR.convert(config(), entry.raw)
    with pytest.raises(AuditordError, match="discard"):
        HTCONDOR.convert(config(), {"line": "x"})


async def test_a_job_whose_attribute_was_not_asked_for_is_fetched_by_its_id(pool: Player) -> None:
    """An optional component would be left out of its record without a word: the row has only what was asked for."""
    job = pool.add("s1", 7, CpusProvisioned=None, DiskProvisioned=5)
    at = context(pool)
    assert await run(config(), at) == []
    [entry] = [one for batch in at.kept for one in batch.quarantined]
    mended = config(components=[{"name": "Disk", "key": "DiskProvisioned", "optional": True}])
    assert HTCONDOR.convert is not None
    assert HTCONDOR.job_of is not None
    with pytest.raises(AuditordError, match="'DiskProvisioned' was not queried when the job was read"):
        HTCONDOR.convert(mended, entry.raw)
    again = context(pool, job=HTCONDOR.job_of(entry.raw))
    [record] = await again.keep(HTCONDOR.collect(mended, again))
    assert record.record_id == f"htcondor-{job}"
    [produced] = again.kept[-1].records
    assert isinstance(produced, Produced)
    assert produced.source_id == entry.source_id, "so that the entry is resolved"
    assert [(each.name, each.amount) for each in record.components] == [("Disk", 5)]


def test_the_job_of_a_whole_ad_is_known_and_that_of_a_stray_line_is_not() -> None:
    assert HTCONDOR.job_of is not None
    assert HTCONDOR.job_of({"ad": 'ClusterId = 31\nProcId = 2\nVoName = f("x")\n'}) == JobChoice("31.2")
    assert HTCONDOR.job_of({"ad": '{"ClusterId": 31, "ProcId": 0}'}) == JobChoice("31.0")
    assert HTCONDOR.job_of({"line": "x"}) is None
    assert HTCONDOR.job_of({"ad": "no ad"}) is None


async def test_a_window_is_collected_exactly_again_and_again(pool: Player) -> None:
    ids = {hour: pool.add("s1", hour, end=EPOCH - hour * 3600) for hour in range(5, 0, -1)}
    at = context(pool, window=Window(NOW - 4 * HOUR, NOW - 2 * HOUR))
    expected = [f"htcondor-{ids[4]}", f"htcondor-{ids[3]}"]
    assert await run(config(), at) == expected
    assert await run(config(), at) == expected
    assert at.checkpoint is None
    pool.disturb(s1={"cap": 2})
    got, _ = await run_and_fail(config(), at)
    assert got == []


async def test_one_job_is_collected_again(pool: Player) -> None:
    ids = [pool.add(schedd, number, end=EPOCH - 60) for schedd in ("s1", "s2") for number in (41, 42)]
    at, chosen = context(pool), config(schedd_names=["s1", "s2"])
    await run(chosen, at)
    position = at.checkpoint
    for choice, expected in (
        (JobChoice("42.0"), [ids[1], ids[3]]),
        (JobChoice("42", "s2"), [ids[3]]),
        (JobChoice("42.1"), []),
        (JobChoice("4"), []),
    ):
        at.job = choice
        assert await run(chosen, at) == [f"htcondor-{job}" for job in expected]
    assert at.checkpoint == position
    for wrong, message in ((JobChoice("42.0", "s3"), "no schedd 's3'"), (JobChoice("-help"), "is not a job id")):
        at.job = wrong
        with pytest.raises(AuditordError, match=message):
            await run(chosen, at)


async def test_every_run_of_a_job_if_asked_for(pool: Player) -> None:
    job = {"GlobalJobId": "s1#1.0#5", "CompletionDate": 0}
    for number in (0, 1):
        begin = EPOCH - 9000 + number * 4000
        times = {"JobCurrentStartDate": begin, "EpochWriteDate": begin + 3000, "LastMatchTime": EPOCH - 9001}
        pool.add("s1", 1, NumShadowStarts=number, end=begin + 3000, **times, **job)
    at = context(pool)
    records = await at.keep(HTCONDOR.collect(config(epochs=True), at))
    assert [record.record_id for record in records] == [
        f"htcondor-s1#1.0#5-{EPOCH - 9000}",
        f"htcondor-s1#1.0#5-{EPOCH - 5000}",
    ]
    assert [record.runtime for record in records] == [3000, 3000]
    assert await run(config(epochs=True), at) == []


async def test_the_call_says_whom_to_ask_and_what(pool: Player) -> None:
    chosen = config(pool="cm:9619", condor_history="condor_ce_history", through=["ssh", "ce1"], epochs=True)
    at = context(pool)
    await run(chosen, at)
    argv = at.ran[0]
    assert argv[:8] == ("ssh", "ce1", "condor_ce_history", "-name", "s1", "-pool", "cm:9619", "-epochs")
    assert argv[8:10] == ("-backwards", "-af")
    words = {call[10] for call in at.ran}
    assert len(words) == len(at.ran) > 1
    assert set(argv[10::2]) == {argv[10]}
    assert argv[11] == "GlobalJobId"


async def test_without_names_the_local_history_is_read(pool: Player) -> None:
    job = pool.add("local", 1, end=EPOCH - 60)
    at = context(pool)
    assert await run(config(schedd_names=[]), at) == [f"htcondor-{job}"]
    assert "-name" not in at.ran[0]


async def test_a_checkpoint_of_something_else_is_refused(pool: Player) -> None:
    with pytest.raises(AuditordError, match="checkpoint"):
        await run(config(), context(pool, checkpoint={"job": 1}))


async def test_expressions_in_json_need_the_extra(pool: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.add("s1", 1, end=EPOCH - 60)
    without = pool.folder / "without_classad2.py"
    without.write_text("""print('{"missing": "no module named classad2"}')""")
    monkeypatch.setattr("auditord_builtin.htcondor.evaluation._PROGRAM", without)
    with pytest.raises(AuditordError, match=r"auditord\[htcondor\]"):
        await run(config(output="json"), context(pool))
    plain = config(output="json", components=[{"name": "Cores", "key": "CpusProvisioned"}])
    assert len(await run(plain, context(pool))) == 1
