from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from auditord.testing import FakeCollectorContext
from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.conversion import convert, job_of
from auditord_builtin.slurm.kinds import SLURM, SLURM_EPILOG
from auditord_builtin.slurm.runs import ENDED, parse_state
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CommandFailed,
    InvalidRecord,
    JobChoice,
    Produced,
    Record,
    Window,
)

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 3, 29, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@dataclass
class Sacct:
    """Plays sacct over a list of jobs that can grow between the runs."""

    jobs: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    fault: Exception | None = None
    calls: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def __call__(self, argv: Sequence[str]) -> bytes:
        parts = [option.removeprefix("--").partition("=") for option in argv if option.startswith("--")]
        options = {name: value for name, _, value in parts}
        self.calls.append(options)
        if self.fault:
            raise self.fault
        columns = options["format"].split(",")
        rows = [job for job in self.jobs if self._asked_for(job, options)]
        lines = (options["delimiter"].join(row.get(column, "") for column in columns) for row in rows)
        return "".join(f"{line}\n" for line in lines).encode()

    def _asked_for(self, job: Mapping[str, str], options: Mapping[str, str]) -> bool:
        start, stop = (
            datetime.fromisoformat(options[name]).replace(tzinfo=UTC).timestamp() for name in ("starttime", "endtime")
        )
        state = parse_state(job["State"])
        if "jobs" in options and job["JobID"] not in options["jobs"].split(","):
            return False
        if "state" in options:
            asked = {
                ENDED.get(short, {"R": "RUNNING", "S": "SUSPENDED"}.get(short)) for short in options["state"].split(",")
            }
            running = state in {"RUNNING", "SUSPENDED"}
            ended = job["End"] != "Unknown" and start <= int(job["End"]) <= stop
            return state in asked and (running or ended)
        return job["End"] == "Unknown" or int(job["End"]) >= start

    def add(self, job_id: str, end: datetime | None, state: str = "COMPLETED", **columns: str) -> None:
        stop = end or NOW
        known = {"JobID": job_id, "JobIDRaw": job_id, "Cluster": "c1", "State": state, "NCPUS": "1", "User": "alice"}
        times = {"Start": f"{stop.timestamp() - 60:.0f}", "End": f"{end.timestamp():.0f}" if end else "Unknown"}
        self.jobs.append({**known, **times, **columns})


def config(**options: Any) -> SlurmConfig:
    defaults = {"earliest_datetime": NOW - 24 * HOUR, "components": "auditor", "lag": "0s"}
    return SlurmConfig.model_validate({**defaults, **options})


def context(sacct: Sacct, **options: Any) -> FakeCollectorContext:
    return FakeCollectorContext(moment=NOW, commands=sacct, **options)


async def run(chosen: SlurmConfig, at: FakeCollectorContext) -> list[str]:
    return [record.record_id for record in await at.keep(SLURM.collect(chosen, at))]


async def test_a_run_accounts_for_what_ended_and_the_next_adds_nothing() -> None:
    sacct = Sacct()
    sacct.add("1", NOW - 2 * HOUR)
    sacct.add("2", NOW - timedelta(seconds=1), "FAILED")
    sacct.add("3", NOW - HOUR, "CANCELLED by 0", Start="None")
    at = context(sacct)
    assert await run(config(), at) == ["slurm-1", "slurm-2"]
    assert sum((batch.skipped.get("never started", 0) for batch in at.kept), 0) == 1
    count = len(at.kept)
    assert await run(config(), at) == []
    assert all(not batch.skipped for batch in at.kept[count:])


async def test_every_job_belongs_to_one_page_also_on_its_border() -> None:
    sacct = Sacct()
    for hour in range(24):
        sacct.add(str(hour + 1), NOW - 24 * HOUR + hour * HOUR)
    at = context(sacct)
    at.remembered = {}
    assert await run(config(slice="1h"), at) == [f"slurm-{hour + 1}" for hour in range(24)]
    assert at.progress == 1.0


async def test_a_job_that_reaches_the_database_late_is_found_by_the_overlap() -> None:
    sacct, at = Sacct(), None
    at = context(sacct)
    await run(config(), at)
    sacct.add("1", NOW - timedelta(minutes=59))
    at.moment += timedelta(minutes=5)
    assert await run(config(overlap="2h"), at) == ["slurm-1"]


async def test_a_job_that_is_very_late_is_found_by_the_daily_look_back_in_any_state() -> None:
    sacct = Sacct()
    at = context(sacct)
    await run(config(), at)
    sacct.add("1", NOW - 20 * HOUR)
    sacct.add("2", NOW - 20 * HOUR, "INVENTED_LATER")
    sacct.add("3", None, "RUNNING")
    for hours in (1, 12, 23):
        at.moment = NOW + hours * HOUR
        assert await run(config(), at) == []
    at.moment = NOW + 24 * HOUR
    assert await run(config(), at) == ["slurm-1", "slurm-2"]
    at.moment = NOW + 25 * HOUR
    calls = len(sacct.calls)
    assert await run(config(), at) == []
    assert len(sacct.calls) == calls + 1


async def test_a_run_without_an_end_is_waited_for_by_the_look_back() -> None:
    """After an outage of slurmdbd sacct says COMPLETED and names no end for a while; a runaway job stays so."""
    sacct = Sacct()
    at = context(sacct)
    chosen = config(rescan_every="1h", patience="6h")
    await run(chosen, at)
    for job_id in ("1", "2"):
        sacct.add(job_id, None, "COMPLETED", Start=f"{NOW.timestamp() - 60:.0f}")
    for hours in (1, 2):
        at.moment = NOW + hours * HOUR
        assert await run(chosen, at) == []
        assert not any(batch.quarantined for batch in at.kept)
    assert any(batch.skipped == {"over, but its end is not known yet": 2} for batch in at.kept)
    sacct.jobs[0]["End"] = f"{NOW.timestamp():.0f}"
    at.moment = NOW + 3 * HOUR
    assert await run(chosen, at) == ["slurm-1"]
    for hours in (7, 8):
        at.moment = NOW + hours * HOUR
        assert await run(chosen, at) == []
    assert [job.source_id for batch in at.kept for job in batch.quarantined] == [f"c1/2@{NOW.timestamp() - 60:.0f}"]
    at.moment = NOW + timedelta(days=30)
    await run(chosen, at)
    assert await at.pending() == {}


async def test_a_look_back_that_is_broken_off_for_most_of_a_day_finds_nothing_new() -> None:
    """It goes on from where it was, so it meets runs that ended longer ago than it looks back."""
    sacct = Sacct()
    sacct.add("1", NOW - timedelta(seconds=1))
    at = context(sacct)
    chosen = config(overlap="0s", rescan_window="7d")
    assert await run(chosen, at) == ["slurm-1"]
    at.moment = NOW + timedelta(days=7, seconds=-10)
    batches = SLURM.collect(chosen, at)
    async for batch in batches:
        at.checkpoint = batch.checkpoint
        break
    assert datetime.fromisoformat(at.checkpoint["rescan_from"]) < NOW
    at.moment += timedelta(hours=20)
    assert await run(chosen, at) == []


async def test_a_look_back_that_is_broken_off_goes_on_where_it_was() -> None:
    sacct = Sacct()
    at = context(sacct)
    await run(config(), at)
    at.moment = NOW + 24 * HOUR
    batches = SLURM.collect(config(), at)
    async for batch in batches:
        at.kept.append(batch)
        at.checkpoint = batch.checkpoint
        begun = at.checkpoint["rescan_from"]
        if begun is not None and datetime.fromisoformat(begun) > NOW - 24 * HOUR:
            break
    stopped = datetime.fromisoformat(at.checkpoint["rescan_from"])
    sacct.calls.clear()
    await run(config(), at)
    deep = [call for call in sacct.calls if "state" not in call]
    assert datetime.fromisoformat(deep[0]["starttime"]).replace(tzinfo=UTC) == stopped
    assert at.checkpoint["rescan_from"] is None


async def test_the_first_run_without_a_date_begins_now() -> None:
    sacct = Sacct()
    sacct.add("1", NOW - timedelta(minutes=1))
    at = context(sacct)
    assert await run(config(earliest_datetime=None, lag="1m"), at) == []
    sacct.add("2", NOW + timedelta(minutes=1))
    at.moment = NOW + timedelta(minutes=5)
    assert await run(config(earliest_datetime=None, lag="1m"), at) == ["slurm-2"]


async def test_jobs_within_the_lag_wait_for_the_next_run() -> None:
    sacct = Sacct()
    sacct.add("1", NOW - timedelta(seconds=30))
    at = context(sacct)
    assert await run(config(lag="1m"), at) == []
    at.moment += timedelta(minutes=1)
    assert await run(config(lag="1m"), at) == ["slurm-1"]


async def test_a_clock_that_goes_back_costs_no_job_and_counts_none_twice() -> None:
    sacct = Sacct()
    sacct.add("1", NOW - HOUR)
    at = context(sacct)
    assert await run(config(), at) == ["slurm-1"]
    at.moment = NOW - 5 * HOUR
    assert await run(config(), at) == []
    sacct.add("2", NOW - 2 * HOUR)
    at.moment = NOW + timedelta(minutes=5)
    assert await run(config(), at) == ["slurm-2"]
    at.moment = NOW - timedelta(days=365)  # before the beginning of the accounting
    assert await run(config(), at) == []
    assert datetime.fromisoformat(at.checkpoint["until"]) == NOW + timedelta(minutes=5)


async def test_a_clock_that_was_ahead_for_one_run_hides_no_jobs() -> None:
    sacct = Sacct()
    at = context(sacct)
    await run(config(), at)
    at.moment = NOW + timedelta(days=30)
    await run(config(), at)
    sacct.add("1", NOW + HOUR)
    sacct.add("2", NOW + 9 * HOUR)
    at.moment = NOW + 9 * HOUR + timedelta(minutes=5)
    assert sorted(await run(config(), at)) == ["slurm-1", "slurm-2"]
    sacct.add("3", NOW + 9 * HOUR + timedelta(minutes=6))
    at.moment += 5 * HOUR
    assert await run(config(rescan_window="0s"), at) == ["slurm-3"], "the checkpoint is right again"


@pytest.mark.parametrize(("ahead", "days"), [(30, 20), (30, 60), (400, 20), (9, 20)])
@pytest.mark.parametrize("window", ["7d", "0s"])
async def test_a_clock_that_was_ahead_for_long_hides_no_jobs(ahead: int, days: int, window: str) -> None:
    at, chosen = context(sacct := Sacct()), config(rescan_window=window)
    sacct.add("1", NOW - HOUR)
    found = [*await run(chosen, at)]
    for day in range(1, days + 1):
        sacct.add(str(day + 1), NOW + timedelta(days=day))
        at.moment = NOW + timedelta(days=ahead + day, minutes=5)
        found += await run(chosen, at)
    at.moment = NOW + timedelta(days=days, minutes=5)
    found += await run(chosen, at)
    assert set(found) == {f"slurm-{number}" for number in range(1, days + 2)}  # a run that is sent again counts once
    assert at.checkpoint["jumped_from"] is None
    assert await run(chosen, at) == []


async def test_a_pause_of_the_daemon_is_no_jump_of_the_clock() -> None:
    at = context(sacct := Sacct())
    sacct.add("0", NOW - timedelta(minutes=5))
    await run(config(), at)
    at.moment = NOW + timedelta(days=30)
    await run(config(), at)
    assert datetime.fromisoformat(at.checkpoint["jumped_from"]) == NOW
    sacct.add("1", NOW + timedelta(days=31))
    at.moment = NOW + timedelta(days=31, minutes=5)
    assert await run(config(), at) == ["slurm-1"]
    assert at.checkpoint["jumped_from"] is None
    sacct.calls.clear()
    at.moment -= timedelta(minutes=2)
    await run(config(), at)
    assert min(call["starttime"] for call in sacct.calls) > f"{NOW + timedelta(days=22):%Y-%m-%d}"


async def test_a_rescan_that_was_broken_off_while_the_clock_was_ahead_does_not_prevent_others() -> None:
    at = context(sacct := Sacct())
    await run(config(), at)
    at.moment = NOW + timedelta(days=30)
    async for batch in SLURM.collect(config(), at):
        at.checkpoint = batch.checkpoint
        if at.checkpoint["rescan_from"] is not None:
            break
    sacct.add("1", NOW + HOUR)
    at.moment = NOW + 26 * HOUR
    assert await run(config(), at) == ["slurm-1"]


@pytest.mark.parametrize("window", ["1d", "7d"])
async def test_jobs_are_found_that_reach_the_database_almost_as_late_as_a_rescan_looks_back(window: str) -> None:
    chosen = config(rescan_window=window)
    at = context(sacct := Sacct())
    for day in range(8):
        at.moment = NOW + timedelta(days=day)
        assert await run(chosen, at) == []
    ended = at.moment + HOUR - chosen.rescan_window
    sacct.add("1", ended, Start=f"{ended.timestamp() - 60:.0f}")
    at.moment += timedelta(days=1)
    assert await run(chosen, at) == ["slurm-1"]
    at.moment += timedelta(days=1)
    assert await run(chosen, at) == []


async def test_no_job_is_collected_again_after_the_daemon_was_down_for_long() -> None:
    """Under another record_prefix, it would count twice."""
    at = context(sacct := Sacct())
    await run(config(), at)
    for day in range(1, 8):
        ended = NOW + timedelta(days=day, hours=-2)
        sacct.add(str(day), ended, Start=f"{ended.timestamp() - 60:.0f}")
        at.moment = NOW + timedelta(days=day)
        assert await run(config(), at) == [f"slurm-{day}"]
    at.moment += timedelta(days=5)
    assert await run(config(record_prefix="other"), at) == []


async def test_a_rescan_in_progress_goes_on_after_the_clock_was_ahead() -> None:
    at = context(sacct := Sacct())
    await run(config(), at)
    for moment in (NOW + timedelta(days=2), NOW + timedelta(days=40)):
        at.moment = moment
        async for batch in SLURM.collect(config(), at):
            at.checkpoint = batch.checkpoint
            if datetime.fromisoformat(at.checkpoint["until"]) == moment:  # all new jobs were read
                break
        assert at.checkpoint["rescan_from"] is not None
    sacct.add("1", NOW + HOUR)
    at.moment = NOW + timedelta(days=9)
    assert await run(config(), at) == ["slurm-1"]


async def test_a_fault_fails_the_run_and_leaves_the_checkpoint() -> None:
    sacct = Sacct()
    sacct.add("1", NOW - HOUR)
    at = context(sacct)
    sacct.fault = CommandFailed("`sacct` ended with exit code 1: Connection refused")
    with pytest.raises(CommandFailed, match="Connection refused"):
        await run(config(), at)
    assert datetime.fromisoformat(at.checkpoint["until"]) == NOW - 24 * HOUR
    sacct.fault = None
    assert await run(config(), at) == ["slurm-1"]


async def test_pages_that_were_read_before_a_fault_stay_read() -> None:
    sacct = Sacct()
    sacct.add("1", NOW - 20 * HOUR)
    at = context(sacct)
    batches: Any = SLURM.collect(config(), at)
    first: list[Batch] = [await anext(batches) for _ in range(2)]
    at.kept += first
    at.checkpoint = first[-1].checkpoint
    sacct.fault = CommandFailed("gone")
    with pytest.raises(CommandFailed):
        await anext(batches)
    assert datetime.fromisoformat(at.checkpoint["until"]) == NOW - 18 * HOUR


async def test_one_broken_job_is_quarantined_and_the_others_are_not() -> None:
    sacct = Sacct()
    sacct.add("1", NOW - HOUR)
    sacct.add("2", NOW - HOUR, Start="yesterday")
    sacct.add("3", NOW - HOUR, NCPUS="many")
    sacct.add("4", NOW - HOUR, End=f"{(NOW - HOUR).timestamp():.0f}", NCPUS="0")
    at = context(sacct)
    assert await run(config(), at) == ["slurm-1", "slurm-4"]
    quarantined = {one.source_id: one.reason for batch in at.kept for one in batch.quarantined}
    assert "yesterday" in quarantined["c1/2@yesterday"]
    assert any("many" in reason for reason in quarantined.values())
    assert await run(config(), at) == []
    assert not at.kept[-1].quarantined


async def test_each_row_of_a_resized_job_has_its_own_entry_in_quarantine() -> None:
    """They have the same id and start, and only one entry is kept for each source id."""
    start, resized = (f"{(NOW - hours * HOUR).timestamp():.0f}" for hours in (4, 3))
    sacct = Sacct()
    sacct.add("7", NOW - 3 * HOUR, "RESIZING", Start=start, Submit=str(int(start) - 9), NCPUS="many")
    sacct.add("7", NOW - HOUR, Start=start, Submit=resized, NCPUS="few")
    at = context(sacct)
    await run(config(), at)
    names = [one.source_id for batch in at.kept for one in batch.quarantined]
    assert names == [f"c1/7@{start}", f"c1/7@{resized}"]


async def test_a_window_is_collected_exactly_again_and_again() -> None:
    sacct = Sacct()
    for hour in range(1, 6):
        sacct.add(str(hour), NOW - hour * HOUR)
    at = context(sacct, window=Window(NOW - 4 * HOUR, NOW - 2 * HOUR))
    expected = ["slurm-3", "slurm-4"]
    assert sorted(await run(config(), at)) == expected
    assert sorted(await run(config(), at)) == expected
    assert all(batch.checkpoint is None for batch in at.kept)


async def test_a_window_up_to_now_leaves_the_latest_jobs_to_the_next_run() -> None:
    """Their last steps may not be known yet, and then their records would lack figures for good."""
    sacct = Sacct()
    sacct.add("1", NOW - timedelta(seconds=61))
    sacct.add("2", NOW - timedelta(seconds=59))
    at = context(sacct)
    chosen = config(lag="1m")
    at.window = Window(NOW - HOUR, NOW)
    assert await run(chosen, at) == ["slurm-1"]
    at.window, at.moment = None, NOW + timedelta(minutes=5)
    assert await run(chosen, at) == ["slurm-2"]


async def test_running_jobs_become_open_records_once_and_are_closed_by_the_same_id() -> None:
    sacct = Sacct()
    sacct.add("1", None, "RUNNING")
    sacct.add("2", None, "SUSPENDED")
    sacct.add("3", None, "PENDING", Start="Unknown")
    at = context(sacct)
    chosen = config(open_records=True)
    opened = await at.keep(SLURM.collect(chosen, at))
    assert [(record.record_id, record.stop_time) for record in opened] == [("slurm-1", None), ("slurm-2", None)]
    assert await run(chosen, at) == []
    sacct.jobs[0] |= {"State": "COMPLETED", "End": f"{(NOW + HOUR).timestamp():.0f}"}
    at.moment = NOW + 2 * HOUR
    [closed] = await at.keep(SLURM.collect(chosen, at))
    assert (closed.record_id, closed.start_time) == ("slurm-1", opened[0].start_time)
    assert closed.stop_time == NOW + HOUR


async def test_every_record_carries_its_alternate_id() -> None:
    sacct = Sacct()
    sacct.add("1", NOW - HOUR)
    at = context(sacct)
    await run(config(), at)
    made = [one for batch in at.kept for one in batch.records]
    assert [one.alternate_id for one in made if isinstance(one, Produced)] == [
        f"slurm-1-{(NOW - HOUR).timestamp() - 60:.0f}"
    ]
    assert not any(isinstance(one, Record) for one in made)


async def test_the_query_says_everything_that_sacct_would_guess() -> None:
    sacct = Sacct()
    at = context(sacct)
    await run(config(sacct=["sudo", "sacct"], through=["ssh", "head1"], clusters=["a"], slice="365d"), at)
    options = sacct.calls[0]
    assert at.ran[0][:4] == ("ssh", "head1", "sudo", "sacct")
    assert options["starttime"] == "2026-03-28T12:00:00"
    assert options["endtime"] == "2026-03-29T12:00:00"
    assert {"allusers", "duplicates", "noheader", "noconvert", "parsable2", "allocations"} <= options.keys()
    assert options["clusters"] == "a"
    assert options["state"].split(",") == list(ENDED)
    assert options["format"].startswith("JobID,")
    assert options["format"].endswith(",JobIDRaw")


async def test_steps_are_asked_for_only_if_a_column_needs_them() -> None:
    sacct = Sacct()
    await run(config(), context(sacct))
    assert "allocations" in sacct.calls[0]
    sacct.calls.clear()
    await run(SlurmConfig(earliest_datetime=NOW - HOUR), context(sacct))
    assert "allocations" not in sacct.calls[0]


async def test_every_query_has_a_delimiter_of_its_own() -> None:
    sacct = Sacct()
    await run(config(), context(sacct))
    delimiters = {call["delimiter"] for call in sacct.calls}
    assert len(delimiters) == len(sacct.calls) > 1


async def test_a_checkpoint_of_something_else_is_refused() -> None:
    with pytest.raises(AuditordError, match="checkpoint"):
        await run(config(), context(Sacct(), checkpoint={"job": 1}))


async def test_a_checkpoint_of_an_earlier_version_is_gone_on_from() -> None:
    before = (NOW - 24 * HOUR).isoformat()
    stored = {"earliest": before, "until": before, "rescanned": NOW.isoformat(), "rescan_from": None}
    sacct = Sacct()
    at = context(sacct, checkpoint=stored)
    await run(config(lag="0s", overlap="0s"), at)
    assert sacct.calls[0]["starttime"] == (NOW - 24 * HOUR).strftime("%Y-%m-%dT%H:%M:%S")
    assert datetime.fromisoformat(at.checkpoint["until"]) == NOW


async def test_labels_that_are_left_out_are_named() -> None:
    sacct = Sacct()
    sacct.add("1", NOW - HOUR, Comment="no json")
    at = context(sacct)
    await run(config(meta=[{"name": "c", "key": "Comment", "key_type": "Json"}]), at)
    [left_out] = [each for batch in at.kept for each in batch.left_out]
    assert (left_out.name, left_out.label, left_out.record_id) == ("c", True, "slurm-1")
    assert left_out.reason.startswith("meta c: Comment: 'no json' is not a JSON object")


MAX_RSS = [{"name": "MaxRSS", "key": "MaxRSS", "key_type": "Size", "optional": True}]


async def test_a_job_whose_column_was_not_asked_for_is_fetched_by_its_id() -> None:
    """The commonest mistake: a component of a wrong column; the raw input holds only what was asked for then."""
    sacct = Sacct()
    for name in ("7", "8_4", "9"):
        sacct.add(name, NOW - HOUR, ReqCPUS="60", NCPUS="")
    at = context(sacct)
    assert await run(config(components=[{"name": "Cores", "key": "NCPUS"}]), at) == []
    jobs = {job.source_id: job.raw for batch in at.kept for job in batch.quarantined}
    assert len(jobs) == 3
    mended = config(components=[{"name": "Asked", "key": "ReqCPUS"}])
    choices = [job_of(raw) for raw in jobs.values()]
    for raw in jobs.values():
        with pytest.raises(InvalidRecord, match="'ReqCPUS' was not queried when the job was read"):
            convert(mended, raw)
    assert [choice.job_id for choice in choices if choice] == ["7", "8_4", "9"]
    again = context(sacct, job=JobChoice("7,8_4"), checkpoint={"of": "another run"})
    await run(mended, again)
    [batch] = again.kept
    assert sacct.calls[-1]["jobs"] == "7,8_4"
    assert sacct.calls[-1]["starttime"].startswith("1970-01-02")
    produced = [each for each in batch.records if isinstance(each, Produced)]
    assert {each.source_id for each in produced} == {name for name in jobs if "/9/" not in name and "/9@" not in name}
    assert [each.record.components[0].amount for each in produced] == [60, 60]
    assert batch.checkpoint is None


async def test_steps_that_were_not_asked_for_are_no_reason_to_leave_a_component_out() -> None:
    sacct = Sacct()
    sacct.add("7", NOW - HOUR, NCPUS="")
    at = context(sacct)
    await run(config(components=[{"name": "Cores", "key": "NCPUS"}]), at)
    [job] = [job for batch in at.kept for job in batch.quarantined]
    raw = {**job.raw, "allocation": {**job.raw["allocation"], "NCPUS": "1", "MaxRSS": ""}}
    with pytest.raises(InvalidRecord, match="steps were not queried when the job was read"):
        convert(config(components=MAX_RSS), raw)


@pytest.mark.parametrize("job_id", ["--version", "7;8", "", "a"])
async def test_what_is_no_job_id_is_not_given_to_sacct(job_id: str) -> None:
    with pytest.raises(AuditordError, match="not a job id"):
        await run(config(), context(Sacct(), job=JobChoice(job_id)))


def test_a_stray_line_names_no_job() -> None:
    assert job_of({"line": "what is this"}) is None


async def test_a_step_that_belongs_to_no_job_is_quarantined_once() -> None:
    sacct = Sacct()
    sacct.add("99.0", NOW - HOUR)
    sacct.add("1", NOW - HOUR)
    at = context(sacct)
    assert await run(config(), at) == ["slurm-1"]
    assert [job.raw["step"]["JobID"] for batch in at.kept for job in batch.quarantined] == ["99.0"]
    at.kept.clear()
    at.moment += HOUR / 12
    await run(config(), at)
    assert sacct.calls
    assert [job for batch in at.kept for job in batch.quarantined] == []


async def test_an_inventory_counts_what_had_begun_within_it_and_still_runs() -> None:
    sacct, window = Sacct(), Window(NOW - 5 * HOUR, NOW - 3 * HOUR)
    sacct.add("1", NOW - 4 * HOUR)
    for number, begun in enumerate((NOW - 24 * HOUR, window.stop - timedelta(seconds=1), window.stop, NOW)):
        sacct.add(f"{number + 2}", None, "RUNNING", Start=f"{begun.timestamp():.0f}")
    sacct.add("9", None, "SUSPENDED", Start="None")
    assert SLURM.inventory is not None
    at = context(sacct, window=window)
    assert [record.record_id for record in await at.keep(SLURM.inventory(config(), at))] == ["slurm-1"]
    assert at.kept[-1].skipped == {"still running": 2}
    asked = sacct.calls[-1]
    assert (asked["state"], asked["starttime"], asked["endtime"]) == (
        "R,S",
        "2026-03-29T11:59:59",
        "2026-03-29T12:00:00",
    )


def test_the_collectors_run_as_often_as_the_manual_says() -> None:
    assert (SLURM.interval, SLURM_EPILOG.interval) == (timedelta(minutes=5), timedelta(minutes=1))
