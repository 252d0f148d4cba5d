"""From notes to records, over a Slurm that the tests play with recorded output."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from auditord.testing import FakeCollectorContext
from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig
from auditord_builtin.slurm.kinds import SLURM_EPILOG
from auditord_hookspecs import AuditordError, Batch, CommandFailed, InvalidRecord, Produced, Record, Window

pytestmark = pytest.mark.anyio

TEXT: Final = Path(__file__).with_name("recorded").joinpath("completed.txt").read_bytes().decode()
END: Final = datetime.fromtimestamp(1795174065, UTC)
NOW: Final = END + timedelta(minutes=5)


def failed(stderr: str) -> CommandFailed:
    return CommandFailed(f"scontrol ended with exit code 1: {stderr} (`scontrol …`)", exit_code=1, stderr=stderr)


@dataclass
class Slurm:
    """Plays Slurm 22.05: scontrol without JSON over printed texts by question, and sacct over rows; no squeue."""

    printed: dict[str, str] = field(default_factory=dict[str, str])
    rows: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    fault: CommandFailed | None = None
    asked: list[str] = field(default_factory=list[str])

    def __call__(self, argv: Sequence[str]) -> bytes:
        if self.fault is not None:
            raise self.fault
        if argv[0] == "squeue":
            raise CommandFailed("`squeue` cannot start: no program 'squeue'")
        if argv[-1] == "--json":
            raise failed("scontrol: unrecognized option '--json'")
        return self._scontrol(argv[3]) if argv[0] == "scontrol" else self._sacct(argv)

    def _scontrol(self, question: str) -> bytes:
        self.asked.append(f"scontrol {question}")
        if question not in self.printed:
            raise failed("slurm_load_jobs error: Invalid job id specified")
        return self.printed[question].encode()

    def _sacct(self, argv: Sequence[str]) -> bytes:
        options = dict(option.removeprefix("--").split("=", 1) for option in argv if "=" in option)
        self.asked.append(f"sacct {options.get('jobs', 'all')}")
        columns = options["format"].split(",")
        wanted = options["jobs"].split(",") if "jobs" in options else None
        since = datetime.fromisoformat(options["starttime"]).replace(tzinfo=UTC).timestamp()
        listed = [row for row in self.rows if not row["End"].isdigit() or int(row["End"]) >= since]
        rows = [row for row in listed if wanted is None or {row["JobID"], row["JobIDRaw"]} & {*wanted}]
        return "".join(options["delimiter"].join(row.get(each, "") for each in columns) + "\n" for row in rows).encode()

    def add(self, job_id: str, raw: str = "", end: datetime | None = END, **columns: str) -> None:
        times = {"Start": "1795174000", "End": f"{end.timestamp():.0f}" if end else "Unknown"}
        known = {"JobID": job_id, "JobIDRaw": raw or job_id, "Cluster": "testcluster", "State": "COMPLETED"}
        self.rows.append({**known, **times, "User": "alice", "NCPUS": "2", "NodeList": "n01", **columns})


@dataclass
class Epilog:
    """Notes jobs as the script does."""

    folder: Path
    count: int = 0

    def note(self, job_id: str, at: datetime = END, content: bytes | None = None, **hints: str) -> Path:
        self.count += 1
        file = self.folder / f"{job_id}.{self.count:016x}.job"
        variables = {"SLURM_JOB_ID": job_id, "SLURM_CLUSTER_NAME": "testcluster", **hints}
        file.write_bytes(
            b"".join(f"{k}={v}\0".encode() for k, v in variables.items()) + b"\0" if content is None else content
        )
        os.utime(file, (at.timestamp(), at.timestamp()))
        return file

    def left(self) -> list[str]:
        return sorted(path.name.split(".")[0] for path in self.folder.iterdir())


@pytest.fixture
def epilog(tmp_path: Path) -> Epilog:
    return Epilog(tmp_path)


def config(epilog: Epilog, **options: Any) -> SlurmEpilogConfig:
    return SlurmEpilogConfig.model_validate({"spool": epilog.folder, **options})


async def run(chosen: SlurmEpilogConfig, at: FakeCollectorContext) -> list[Record]:
    return await at.keep(SLURM_EPILOG.collect(chosen, at))


def context(slurm: Slurm, **options: Any) -> FakeCollectorContext:
    return FakeCollectorContext(moment=NOW, commands=slurm, **options)


async def test_scontrol_alone_is_asked_where_it_knows_enough(epilog: Epilog) -> None:
    slurm = Slurm({"251": TEXT})
    epilog.note("251", SLURM_JOB_RESTART_COUNT="0", SLURM_JOB_CPUS_PER_NODE="99", SLURM_JOB_USER="mallory")
    at = context(slurm)
    [record] = await run(config(epilog), at)
    assert record.record_id == "slurm-251"
    assert (record.start_time.timestamp(), record.stop_time) == (1795174063, END)
    assert {each.name: each.amount for each in record.components} == {"Cores": 2, "Memory": 512}
    owners = {"user_id": ("alice",), "group_id": ("atlas",)}
    assert record.meta == {"site_id": ("NOT_CONFIGURED",), **owners, "outcome": ("completed",)}
    assert slurm.asked == ["scontrol 251"]
    assert epilog.left() == []
    assert await run(config(epilog), at) == []


async def test_auditors_conditions_and_scores(epilog: Epilog) -> None:
    rules = [
        {
            "name": "Cores",
            "key": "NCPUS",
            "only_if": {"key": "Partition", "matches": "^short$"},
            "scores": [
                {"name": "HEPscore23", "value": 10.5, "only_if": {"key": "Account", "matches": "physics"}},
                {"name": "HEPscore23", "value": 1.5, "only_if": {"key": "Account", "matches": "biology"}},
            ],
        },
        {"name": "Bigs", "key": "NCPUS", "only_if": {"key": "Partition", "matches": "^long$"}},
    ]
    slurm = Slurm({"251": TEXT})
    epilog.note("251")
    [record] = await run(config(epilog, components=rules), context(slurm))
    [component] = record.components
    assert [(score.name, score.value) for score in component.scores] == [("HEPscore23", 10.5)]
    assert slurm.asked == ["scontrol 251"]


async def test_a_job_that_scontrol_has_forgotten_is_sought_in_the_database(epilog: Epilog) -> None:
    slurm = Slurm()
    slurm.add("251", end=END)
    epilog.note("251")
    assert [record.record_id for record in await run(config(epilog), context(slurm))] == ["slurm-251"]
    assert slurm.asked == ["scontrol 251", "sacct 251"]


@pytest.mark.parametrize("form", ["--json", "--oneliner"])
async def test_a_job_of_which_scontrol_says_nothing_on_standard_error_is_forgotten(epilog: Epilog, form: str) -> None:
    """It prints JSON with an error, or, while it knows other tasks of the array, ``Job 7_4 not found``."""

    def play(argv: Sequence[str]) -> bytes:
        if argv[-1] == form and {"7_4", "11"} & {*argv}:
            raise failed("")
        return slurm(argv)

    slurm = Slurm({"251": TEXT})
    slurm.add("7_4", raw="11")
    epilog.note("11", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="4")
    epilog.note("251")
    at = FakeCollectorContext(moment=NOW, commands=play)
    assert {record.record_id for record in await run(config(epilog, squeue=[]), at)} == {"slurm-7_4", "slurm-251"}


async def test_figures_of_steps_need_sacct_and_a_little_time(epilog: Epilog) -> None:
    slurm, rules = Slurm({"251": TEXT}), [{"name": "CPU", "key": "TotalCPU", "key_type": "Time"}]
    slurm.add("251", TotalCPU="00:10")
    epilog.note("251", at=NOW - timedelta(seconds=59))
    at = context(slurm)
    assert await run(config(epilog, components=rules), at) == []
    assert (slurm.asked, epilog.left()) == ([], ["251"])
    slurm.rows[0]["End"] = f"{(NOW - timedelta(seconds=60)).timestamp():.0f}"
    at.moment += timedelta(seconds=2)
    assert len(await run(config(epilog, components=rules), at)) == 1
    assert slurm.asked == ["sacct 251"]


@pytest.mark.parametrize(
    ("record_id", "expected"), [("job", ["slurm-13+0", "slurm-7_4"]), ("raw", ["slurm-13", "slurm-7"])]
)
async def test_ids_of_arrays_and_heterogeneous_jobs(epilog: Epilog, record_id: str, expected: list[str]) -> None:
    array = TEXT.replace("JobId=251 ", "JobId=7 ArrayJobId=7 ArrayTaskId=4 ")
    het = TEXT.replace("JobId=251 ", "JobId=13 HetJobId=13 HetJobOffset=0 ")
    slurm = Slurm({"7_4": array, "13+0": het})
    epilog.note("7", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="4")
    epilog.note("13", SLURM_HET_JOB_ID="13", SLURM_HET_JOB_OFFSET="0")
    records = await run(config(epilog, record_id=record_id), context(slurm))
    assert sorted(record.record_id for record in records) == expected


async def test_a_job_that_is_completing_waits(epilog: Epilog) -> None:
    slurm = Slurm({"251": TEXT.replace("JobState=COMPLETED", "JobState=COMPLETING")})
    epilog.note("251")
    at = context(slurm)
    assert await run(config(epilog), at) == []
    assert (epilog.left(), slurm.asked) == (["251"], ["scontrol 251"])
    slurm.printed["251"] = TEXT
    assert len(await run(config(epilog), at)) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("JobName=completed", f"JobName=x {TEXT}"),
        ("Restarts=0", "Restarts=1"),
        ("JobState=COMPLETED", "JobState=PENDING"),
        ("EndTime=1795174065", "EndTime=1795174075"),
        ("EndTime=1795174065", "EndTime=1795173000"),
        ("EndTime=1795174065", "EndTime=Unknown"),
        ("JobId=251", "JobId=252"),
    ],
)
async def test_what_is_not_surely_about_this_run_is_asked_of_sacct(epilog: Epilog, old: str, new: str) -> None:
    slurm = Slurm({"251": TEXT.replace(old, new)})
    slurm.add("251", NCPUS="3")
    epilog.note("251", SLURM_JOB_RESTART_COUNT="0")
    [record] = await run(config(epilog), context(slurm))
    assert {each.name: each.amount for each in record.components} == {"Cores": 3}
    assert slurm.asked == ["scontrol 251", "sacct 251"]


async def test_every_run_of_a_requeued_job_is_accounted_for(epilog: Epilog) -> None:
    second = END + timedelta(minutes=3)
    slurm = Slurm()
    slurm.add("251", State="REQUEUED")
    epilog.note("251", SLURM_JOB_RESTART_COUNT="0")
    epilog.note("251", at=second, SLURM_JOB_RESTART_COUNT="1")
    at = context(slurm)
    assert [record.record_id for record in await run(config(epilog), at)] == ["slurm-251-1795174000"]
    assert epilog.left() == ["251"], "the second run is not in the database yet"
    slurm.add("251", end=second, Start="1795174200")
    made = [record.record_id for record in await run(config(epilog), at)]
    assert sorted(made) == ["slurm-251", "slurm-251-1795174000"], "the first run's end may have moved"
    assert epilog.left() == []


async def test_a_finished_run_that_is_requeued_has_the_later_end_whoever_is_first(epilog: Epilog) -> None:
    """Slurm 22.05 moves its end to the requeue; no epilog is called then, but one when the next run ends."""
    requeued, second = END + timedelta(seconds=44), END + timedelta(minutes=5)
    slurm = Slurm({"251": TEXT})
    epilog.note("251", SLURM_JOB_RESTART_COUNT="0")
    at = context(slurm)
    [first] = await run(config(epilog), at)
    assert (first.record_id, first.stop_time) == ("slurm-251", END)
    slurm.printed.clear()
    start = f"{first.start_time.timestamp():.0f}"
    slurm.add("251", end=requeued, State="REQUEUED", Start=start)
    slurm.add("251", end=second, Start=f"{(second - timedelta(seconds=5)).timestamp():.0f}")
    epilog.note("251", at=second, SLURM_JOB_RESTART_COUNT="1")
    at.moment = second + timedelta(minutes=5)
    await run(config(epilog), at)
    made = {one.record.stop_time: one for batch in at.kept for one in batch.records if isinstance(one, Produced)}
    later = made[requeued]
    assert (later.record.record_id, later.alternate_id) == (f"slurm-251-{start}", "slurm-251")
    assert later.replaces
    assert made[second].record.record_id == "slurm-251"
    assert epilog.left() == []


async def test_a_late_note_is_not_taken_for_one_of_the_next_run_alone(epilog: Epilog) -> None:
    """slurmctld may start an epilog minutes after the end, when the job's next run is over as well."""
    slurm = Slurm()
    slurm.add("251", State="NODE_FAIL")
    slurm.add("251", end=END + timedelta(minutes=3), Start="1795174244")
    epilog.note("251", at=END + timedelta(minutes=4), SLURM_JOB_RESTART_COUNT="0")
    epilog.note("251", at=END + timedelta(minutes=4), SLURM_JOB_RESTART_COUNT="1")
    starts = {int(record.start_time.timestamp()) for record in await run(config(epilog), context(slurm))}
    assert (starts, epilog.left()) == ({1795174000, 1795174244}, [])


async def test_a_note_that_is_read_after_the_requeue_is_about_the_run_that_it_was(epilog: Epilog) -> None:
    slurm = Slurm()
    slurm.add("251", end=END + timedelta(seconds=44), State="REQUEUED")
    epilog.note("251", SLURM_JOB_RESTART_COUNT="0")
    assert [record.record_id for record in await run(config(epilog), context(slurm))] == ["slurm-251-1795174000"]
    assert epilog.left() == []


async def test_an_end_that_the_database_does_not_know_yet_is_waited_for(epilog: Epilog) -> None:
    """After an outage of slurmdbd sacct says COMPLETED and names no end for a while."""
    slurm = Slurm()
    slurm.add("251", end=None)
    epilog.note("251")
    at = context(slurm)
    assert await run(config(epilog), at) == []
    assert not any(batch.quarantined for batch in at.kept)
    assert epilog.left() == ["251"]
    slurm.rows[0]["End"] = f"{END.timestamp():.0f}"
    assert [record.record_id for record in await run(config(epilog), at)] == ["slurm-251"]
    assert epilog.left() == []


async def test_an_end_that_never_comes_is_quarantined_when_patience_ends(epilog: Epilog) -> None:
    slurm = Slurm()
    slurm.add("251", end=None)
    epilog.note("251")
    at = context(slurm)
    at.moment = END + timedelta(hours=1)
    assert await run(config(epilog, patience="1h"), at) == []
    assert ["runawayjobs" in job.reason for batch in at.kept for job in batch.quarantined] == [True]
    assert epilog.left() == []


async def test_a_start_that_cannot_be_read_costs_no_other_job_its_record(epilog: Epilog) -> None:
    slurm = Slurm()
    slurm.add("251", State="REQUEUED", Start="yesterday", end=END + timedelta(seconds=30))
    slurm.add("252", end=None, State="NODE_FAIL", Start="yesterday")
    slurm.add("253")
    for job in ("251", "252", "253"):
        epilog.note(job)
    at = context(slurm)
    assert [record.record_id for record in await run(config(epilog), at)] == ["slurm-253"]
    assert epilog.left() == ["252"]  # its end may come
    at.moment = END + timedelta(days=2)
    assert await run(config(epilog), at) == []
    assert epilog.left() == []
    quarantined = [job for batch in at.kept for job in batch.quarantined]
    assert ["yesterday" in job.reason for job in quarantined] == [True, True]


@pytest.mark.parametrize("late", [timedelta(0), timedelta(hours=2)], ids=["noted at its end", "noted late"])
async def test_a_job_that_was_resized_days_before_its_end_has_all_its_rows(epilog: Epilog, late: timedelta) -> None:
    """sacct prints no row that ended before the period that it is asked about (seen with Slurm 22.05)."""
    slurm, sizes = Slurm(), ["8", "4", "2"]
    times = [f"{(END - timedelta(days=days)).timestamp():.0f}" for days in (5, 4, 2, 0)]
    for cores, begun, ended in zip(sizes, times, times[1:], strict=False):
        state = "COMPLETED" if ended == times[-1] else "RESIZING"
        slurm.add("251", State=state, Start=times[0], Submit=begun, End=ended, NCPUS=cores)
    slurm.add("7")
    epilog.note("251", at=END + late)
    epilog.note("7")
    at = context(slurm)
    at.moment += timedelta(days=1)
    records = await run(config(epilog), at)
    days = {record.components[0].amount: record.runtime for record in records if record.record_id != "slurm-7"}
    assert days == {8: 86_400, 4: 2 * 86_400, 2: 2 * 86_400}
    assert len(records) == 4


async def test_a_resized_job_has_all_its_rows(epilog: Epilog) -> None:
    """Nobody is told of the end of the first one, which may be hours before."""
    resized = END - timedelta(hours=3)
    slurm = Slurm()
    start = f"{(END - timedelta(hours=4)).timestamp():.0f}"
    slurm.add("251", end=resized, State="RESIZING", Start=start, NCPUS="4")
    slurm.add("251", Start=start, Submit=f"{resized.timestamp():.0f}", NCPUS="2")
    epilog.note("251")
    made = await run(config(epilog, components="auditor"), context(slurm))
    assert sorted((record.components[0].amount, record.runtime) for record in made) == [(2, 10_800), (4, 3_600)]


async def test_a_job_that_nobody_knows_is_quarantined_when_patience_ends(epilog: Epilog) -> None:
    epilog.note("251", SLURM_JOB_NAME="x")
    at = context(Slurm())
    assert await run(config(epilog, patience="1h"), at) == []
    assert epilog.left() == ["251"]
    at.moment = END + timedelta(hours=1)
    assert await run(config(epilog, patience="1h"), at) == []
    [job] = at.kept[-1].quarantined
    assert job.source_id.startswith("note/251.")
    assert job.reason.startswith("neither scontrol nor sacct knows job 251, which ended at ")
    assert job.raw["hints"]["SLURM_JOB_NAME"] == "x"
    assert epilog.left() == []
    assert SLURM_EPILOG.convert
    with pytest.raises(InvalidRecord, match="collect its day again"):
        SLURM_EPILOG.convert(config(epilog), job.raw)


async def test_a_late_note_is_about_the_run_of_that_day(epilog: Epilog) -> None:
    slurm = Slurm()
    slurm.add("251")
    slurm.add("251", end=END - timedelta(days=400), Start="1700000000")
    epilog.note("251", at=END + timedelta(hours=2))
    at = context(slurm)
    assert await run(config(epilog, patience="4h"), at) == []
    at.moment = END + timedelta(hours=7)
    assert [record.start_time.timestamp() for record in await run(config(epilog, patience="4h"), at)] == [1795174000]


@pytest.mark.parametrize(
    "fault", [failed("Unable to contact slurm controller"), CommandFailed("timed out")], ids=["refused", "slow"]
)
async def test_while_slurm_does_not_answer_everything_stays(epilog: Epilog, fault: CommandFailed) -> None:
    epilog.note("251")
    with pytest.raises(CommandFailed, match=r"Unable|timed"):
        await run(config(epilog), context(Slurm(fault=fault)))
    assert epilog.left() == ["251"]


async def test_without_the_folder_a_run_fails_and_says_so(epilog: Epilog) -> None:
    with pytest.raises(AuditordError, match="mode 2770"):
        await run(config(epilog, spool=epilog.folder / "missing"), context(Slurm()))


async def test_a_note_is_removed_only_when_its_batch_is_kept(epilog: Epilog) -> None:
    slurm = Slurm({"251": TEXT})
    epilog.note("251")
    at = context(slurm)
    batches = SLURM_EPILOG.collect(config(epilog), at)
    batch = await anext(aiter(batches))
    assert len(batch.records) == 1
    assert epilog.left() == ["251"]
    at.remembered.update(batch.seen)  # durable; and now the daemon is killed
    assert await run(config(epilog), at) == []
    assert (epilog.left(), slurm.asked) == ([], ["scontrol 251"])


async def test_a_dry_run_removes_nothing(epilog: Epilog) -> None:
    epilog.note("251")
    epilog.note("x")
    at = context(Slurm({"251": TEXT}), dry_run=True)
    assert len(await run(config(epilog), at)) == 1
    assert epilog.left() == ["251", "x"]


async def test_poison_is_quarantined_alone_with_its_content(epilog: Epilog) -> None:
    epilog.note("251")
    epilog.note("2 5 1", content=b"\xff\0garbage")
    epilog.note("99999999999")
    (epilog.folder / "README").touch()
    at = context(Slurm({"251": TEXT}))
    assert len(await run(config(epilog), at)) == 1
    quarantined = [job for batch in at.kept for job in batch.quarantined]
    assert sorted(job.raw["content"][-9:] for job in quarantined)[1] == "\0garbage".rjust(9, "\ufffd")
    assert {job.source_id for job in quarantined} == {f"note/{job.raw['note']}" for job in quarantined}
    assert epilog.left() == ["README"]


async def test_a_note_without_content_is_enough(epilog: Epilog) -> None:
    epilog.note("251", content=b"")
    epilog.note("252", at=NOW - timedelta(seconds=1), content=b"SLURM_JOB_I")
    assert len(await run(config(epilog), context(Slurm({"251": TEXT})))) == 1
    assert epilog.left() == ["252"], "it may still be written"


async def test_hostile_hints_choose_no_question(epilog: Epilog) -> None:
    slurm = Slurm({"251": TEXT})
    epilog.note("251", SLURM_ARRAY_JOB_ID="7 --all", SLURM_ARRAY_TASK_ID="1")
    assert len(await run(config(epilog), context(slurm))) == 1
    assert slurm.asked == ["scontrol 251"]


async def test_a_job_that_cannot_be_converted_is_recovered_by_a_mended_configuration(epilog: Epilog) -> None:
    broken = config(epilog, sites=[{"name": "A", "only_if": {"key": "Partition", "matches": "^long$"}}])
    epilog.note("251")
    at = context(Slurm({"251": TEXT}))
    assert await run(broken, at) == []
    [job] = at.kept[-1].quarantined
    assert epilog.left() == []
    assert SLURM_EPILOG.convert
    produced = SLURM_EPILOG.convert(config(epilog), job.raw)
    assert isinstance(produced, Produced)
    assert produced.record.record_id == "slurm-251"


async def test_a_period_is_collected_again_from_the_database(epilog: Epilog) -> None:
    slurm = Slurm({"251": TEXT})
    slurm.add("251")
    slurm.add("252")
    epilog.note("251")
    at = context(slurm, window=Window(END - timedelta(hours=1), END + timedelta(hours=1)))
    assert [record.record_id for record in await run(config(epilog), at)] == ["slurm-251", "slurm-252"]
    assert (slurm.asked, epilog.left()) == (["sacct all"], ["251"])


async def test_beside_the_slurm_collector_it_says_the_same_of_a_job(epilog: Epilog) -> None:
    chosen = config(epilog, same_source_as="slurm")
    names = [rule.name for rule in chosen.components]
    assert names == ["Cores", "Memory", "TotalCPU", "MaxRSS", "GPU"]
    assert not chosen.scontrol_suffices
    assert config(epilog, same_source_as="slurm", components="auditor").scontrol_suffices


async def test_a_cluster_without_a_database_does_with_scontrol_alone(epilog: Epilog) -> None:
    slurm, chosen = Slurm({"251": TEXT}), config(epilog, sacct=[], patience="1h")
    epilog.note("251")
    epilog.note("252")
    at = context(slurm)
    assert len(await run(chosen, at)) == 1
    assert epilog.left() == ["252"]
    at.moment = END + timedelta(hours=1)
    await run(chosen, at)
    assert ([job.raw["note"][:3] for job in at.kept[-1].quarantined], epilog.left()) == (["252"], [])
    assert not [question for question in slurm.asked if question.startswith("sacct")]
    at.window = Window(END, NOW)
    with pytest.raises(AuditordError, match="collecting a period or a job again needs sacct"):
        await run(chosen, at)
    with pytest.raises(ValueError, match="only sacct knows TotalCPU"):
        config(epilog, sacct=[], components=[{"name": "CPU", "key": "TotalCPU", "key_type": "Time"}])


def test_raw_ids_beside_the_slurm_collector_would_count_twice(epilog: Epilog) -> None:
    with pytest.raises(ValueError, match="tasks of arrays twice"):
        config(epilog, record_id="raw", same_source_as="slurm")


def test_names_of_scontrol_are_explained(epilog: Epilog) -> None:
    with pytest.raises(ValueError, match="'NumCPUs' is called 'NCPUS' here"):
        config(epilog, components=[{"name": "Cores", "key": "NumCPUs"}])


def in_all(batches: Sequence[Batch]) -> int:
    return sum(len(batch.records) for batch in batches)


async def test_many_notes_come_in_several_batches(epilog: Epilog) -> None:
    slurm = Slurm({str(n): TEXT.replace("JobId=251", f"JobId={n}") for n in range(1, 121)})
    for number in range(1, 121):
        epilog.note(str(number))
    at = context(slurm)
    await run(config(epilog), at)
    assert (in_all(at.kept), len(at.kept), epilog.left()) == (120, 3, [])
