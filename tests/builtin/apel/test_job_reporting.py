"""Individual jobs: each once, whatever comes late, changes, or dies."""

import base64
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import msgspec
import pytest

from auditord.testing import FakePluginContext
from auditord_builtin.apel.config import ApelConfig, Benchmark, JobFields, MandatoryJobFields, MetaField
from auditord_builtin.apel.jobs import forget_marks
from auditord_builtin.apel.messages import Message
from auditord_builtin.apel.publishing import publish, republish
from auditord_builtin.apel.reporting import NotReported
from auditord_builtin.apel.sending import BrokerUnavailable, MessageTooLarge
from auditord_builtin.apel.state import DayState, read_state, stages
from auditord_hookspecs import Component, Record, Score, Window
from auditord_hookspecs.months import Month
from tests.builtin.apel.apel_receiver import Receiver
from tests.builtin.apel.apel_settings import apel_settings
from tests.filtering_context import FilteringContext

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)
SINCE = datetime(2026, 2, 10, tzinfo=UTC)


class Topic:
    """A broker that remembers which jobs it was given."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.receiver = Receiver()
        self.room = 1_000_000
        self.largest = 1_000

    async def publish(self, message: Message, label: str) -> str:
        del label
        if message.records > self.largest:
            raise MessageTooLarge("413")
        if self.room <= 0:
            raise BrokerUnavailable("nobody there")
        self.room -= 1
        self.receiver.take(message.text)
        self.ids += message.record_ids
        return "id"

    def taken(self) -> list[str]:
        taken = sorted(self.ids)
        self.ids.clear()
        return taken


def job(
    name: str, days_ago: float, *, site: str = "a", vo: str = "atlas", cpu: int = 3_000, score: float = 10
) -> Record:
    stop = NOW - timedelta(days=days_ago)
    components = (Component("Cores", 1, (Score("HEPscore23", score),)), Component("TotalCPU", cpu, ()))
    meta: dict[str, tuple[str, ...]] = {"site_id": (site,), "voms": (vo,), "submit_host": ("ce",)}
    return Record(name, stop - timedelta(hours=1), components, stop, meta)


def settings(since: datetime = SINCE) -> ApelConfig:
    return apel_settings(sites={"SITE-A": ["a"], "SITE-B": ["b"]}, since=since, jobs=True)


def context_of(records: Sequence[Record]) -> FakePluginContext:
    return FilteringContext(instance="apel", moment=NOW, stored=records)


async def test_each_job_is_sent_once_and_none_from_before() -> None:
    records = [job("new", 1), job("old", 30), job("b", 2, site="b"), job("before", 40), job("stranger", 1, site="c")]
    context, topic = context_of(records), Topic()
    await publish(settings(), context, topic)
    assert topic.taken() == ["b", "new", "old"]
    context.stored = [*records, job("late", 30), job("next", 0.1)]
    context.moment += timedelta(days=1)
    await publish(settings(), context, topic)
    assert topic.taken() == ["late", "next"]
    await publish(settings(), context, topic, all_months=True)
    assert topic.taken() == []


async def test_older_days_are_looked_at_once_a_day() -> None:
    records = [job("new", 1), job("old", 30)]
    context, topic = context_of(records), Topic()
    await publish(settings(), context, topic)
    topic.taken()
    context.stored = [*records, job("late", 30), job("newest", 0.01)]
    await publish(settings(), context, topic)
    assert topic.taken() == ["newest"]
    context.moment += timedelta(days=1)
    await publish(settings(), context, topic)
    assert topic.taken() == ["late"]


async def test_a_job_that_was_corrected_is_sent_again_alone() -> None:
    context, topic = context_of([job("1", 1), job("2", 1)]), Topic()
    await publish(settings(), context, topic)
    topic.taken()
    context.stored = [job("1", 1, cpu=2_000), job("2", 1)]
    await publish(settings(), context, topic)
    assert topic.taken() == ["1"]
    assert len(topic.receiver.rows) == 2


def rated(record: Record, score: float) -> Record:
    cores, *others = record.components
    return msgspec.structs.replace(
        record, components=(Component("Cores", cores.amount, (Score("HEPscore23", score),)), *others)
    )


async def test_a_benchmark_that_comes_late_is_noticed() -> None:
    context, topic = context_of([rated(job("1", 1), 0.0), job("2", 1)]), Topic()
    await publish(settings(), context, topic)
    assert topic.taken() == ["2"]
    context.stored = [rated(job("1", 1), 12.0), job("2", 1)]
    await publish(settings(), context, topic)
    assert topic.taken() == ["1"]


async def test_jobs_that_were_left_out_are_looked_at_again_with_other_options() -> None:
    context, topic = context_of([job("old", 30), job("new", 1)]), Topic()
    nodes = MandatoryJobFields(NodeCount=MetaField(name=("nodes",)))
    wrong = settings().model_copy(update={"individual_job_fields": JobFields(mandatory=nodes)})
    await publish(wrong, context, topic)
    assert topic.taken() == []
    await publish(settings(), context, topic, all_months=True)
    assert topic.taken() == ["new", "old"]
    await publish(wrong, context, topic, all_months=True)
    assert topic.taken() == []  # what was taken is not looked at again


async def test_a_benchmark_more_that_no_job_has_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord_builtin.apel.jobs.MARKED", 0)
    context, topic = context_of([job("old", 30)]), Topic()
    await publish(settings(), context, topic)
    known = Benchmark(type="HEPscore23", score="HEPscore23")
    for added in [(known, Benchmark(type="hepspec", score="HS06")), (Benchmark(type="hepspec", score="HS06"), known)]:
        topic.taken()
        await publish(settings().model_copy(update={"benchmarks": added}), context, topic, all_months=True)
        assert topic.taken() == []


async def test_figures_are_of_jobs_as_they_are_now() -> None:
    context, topic = context_of([job("1", 1), job("2", 1), job("bad", 1, score=0)]), Topic()
    await publish(settings(), context, topic)
    context.stored = [job("1", 1, cpu=2_000), job("2", 1), job("bad", 1, score=0)]
    await publish(settings(), context, topic)
    counted = stages(read_state(context.state).sites["SITE-A"])
    assert [counted["2026-03", stage] for stage in ("stored", "reported", "acknowledged")] == [3, 2, 2]


async def test_a_clock_that_once_went_wrong_puts_nothing_off() -> None:
    context, topic = context_of([job("old", 30)]), Topic()
    context.moment += timedelta(days=4_000)
    await publish(settings(), context, topic)
    context.moment = NOW
    context.stored = [job("old", 30), job("late", 30)]
    topic.taken()
    await publish(settings(), context, topic)
    assert topic.taken() == ["late"]


async def test_no_time_is_reported_as_both_kinds() -> None:
    summaries = apel_settings(sites={"SITE-A": ["a"]}, since=datetime(2026, 2, 1, tzinfo=UTC))
    jobs = settings(datetime(2026, 3, 1, tzinfo=UTC))
    context, topic = context_of([job("1", 30), job("2", 1)]), Topic()
    await publish(summaries, context, topic)
    with pytest.raises(NotReported, match="SITE-A: until 2026-03 it was reported as summaries"):
        await publish(jobs, context, topic)
    with pytest.raises(NotReported, match="reported as summaries"):
        await republish(jobs, context, topic, period=Window(NOW - timedelta(days=3), NOW))
    assert topic.ids == []
    april = datetime(2026, 4, 1, tzinfo=UTC)
    context.moment, context.stored = april + timedelta(days=3), [job("3", -14)]
    await publish(settings(april), context, topic)
    assert topic.taken() == ["3"]
    with pytest.raises(NotReported, match="until 2026-04-03 it was reported as individual_jobs"):
        await publish(summaries, context, topic)
    with pytest.raises(NotReported, match="reported as individual_jobs"):
        await republish(summaries, context, topic, period=Window(april, april + timedelta(days=1)))


async def test_an_interrupted_run_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord_builtin.apel.jobs.PER_MESSAGE", 2)
    context, topic = context_of([job(str(number), 1) for number in range(7)]), Topic()
    topic.room = 2
    with pytest.raises(NotReported, match="nobody there"):
        await publish(settings(), context, topic)
    first = topic.taken()
    assert len(first) == 4
    topic.room = 9
    context.state = msgspec.json.decode(msgspec.json.encode(context.state))
    await publish(settings(), context, topic)
    assert sorted([*first, *topic.taken()]) == [str(number) for number in range(7)]


async def test_a_message_that_is_too_large_is_halved() -> None:
    context, topic = context_of([job(str(number), 1) for number in range(7)]), Topic()
    topic.largest = 2
    await publish(settings(), context, topic)
    assert topic.taken() == [str(number) for number in range(7)]
    topic.largest = 0
    context.stored = [job("more", 1)]
    with pytest.raises(NotReported, match="413"):
        await publish(settings(), context, topic)


async def test_bad_jobs_are_named_and_stop_no_other(caplog: pytest.LogCaptureFixture) -> None:
    context, topic = context_of([job("good", 1), job("bad", 1, score=0)]), Topic()
    await publish(settings(), context, topic)
    assert topic.taken() == ["good"]
    assert "bad: no score HEPscore23: left out" in caplog.text
    day = read_state(context.state).sites["SITE-A"].days["2026-03-19"]
    assert (day.stored, day.jobs) == (2, 1)


async def test_republishing_is_exact() -> None:
    context, topic = context_of([job(str(days), days) for days in (1, 2, 3, 4)]), Topic()
    await publish(settings(), context, topic)
    topic.taken()
    period = Window(NOW - timedelta(days=3), NOW - timedelta(days=1))  # half open
    await republish(settings(), context, topic, period=period, sites=["SITE-A"])
    assert topic.taken() == ["2", "3"]
    assert [day.jobs for day in read_state(context.state).sites["SITE-A"].days.values()] == [1, 1, 1, 1]
    with pytest.raises(NotReported, match="publish_since"):
        await republish(settings(), context, topic, period=Window(SINCE - timedelta(days=1), NOW), force=True)


async def test_republishing_a_period_that_is_not_over_sends_no_job_of_the_future() -> None:
    """APEL would silently refuse the message, and with it all other jobs in it."""
    context, topic = context_of([job("1", 1), job("clock", -5)]), Topic()
    await republish(settings(), context, topic, period=Window(NOW - timedelta(days=3), NOW + timedelta(days=10)))
    assert topic.taken() == ["1"]


async def test_a_period_to_republish_that_cannot_be_is_refused() -> None:
    context, topic = context_of([job("1", 1)]), Topic()
    with pytest.raises(NotReported, match="ends before it begins"):
        await republish(settings(), context, topic, period=Window(NOW, NOW - timedelta(days=3)))
    with pytest.raises(NotReported, match="the period begins at 2026-04-01T00:00:00"):
        await republish(settings(), context, topic, period=Month(2026, 4).window)


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord_builtin.apel.jobs.MARKED", 3)
    records = [job(f"{days}-{number}", days) for days in (1, 2, 3) for number in (1, 2)]
    context, topic = context_of(records), Topic()
    await publish(settings(), context, topic)
    days = read_state(context.state).sites["SITE-A"].days
    assert [day.marks is None for day in days.values()] == [True, True, False]
    assert [day.jobs for day in days.values()] == [2, 2, 2]
    topic.taken()
    context.moment += timedelta(days=1)
    await publish(settings(), context, topic)
    assert topic.taken() == []
    context.stored = [*records, job("3-late", 3)]
    await publish(settings(), context, topic, all_months=True)
    assert topic.taken() == ["3-1", "3-2", "3-late"]  # of this day it is not known any more which
    assert len(topic.receiver.rows) == 7


def test_a_day_that_is_not_done_keeps_its_marks() -> None:
    marks = base64.b64encode(b"12345678").decode()
    days = {str(date(2026, 1, day)): DayState(marks=marks, jobs=3) for day in (1, 2)}
    assert forget_marks(days) == days


async def test_dry_run_shows_jobs_and_sends_none() -> None:
    context = context_of([job("1", 1), job("bad", 1, score=0)])
    context.dry_run = True
    await publish(settings(), context, Topic())
    assert any(text.startswith("! bad: no score HEPscore23: left out") for text in context.shown)
