"""Single stories of reporting: what is refused, what is said, what goes out and what is written down."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from auditord.testing import FakePluginContext
from auditord_builtin.apel import metrics, reporting
from auditord_builtin.apel.config import ApelConfig, Benchmark
from auditord_builtin.apel.messages import Message
from auditord_builtin.apel.publishing import publish, republish, run_apel
from auditord_builtin.apel.reporting import NotReported
from auditord_builtin.apel.sending import BrokerRefused, BrokerUnavailable, MessageTooLarge
from auditord_builtin.apel.state import read_state
from auditord_hookspecs import AggregateQuery, Aggregates, AuditordError, Component, Record, Score, Window
from auditord_hookspecs.months import Month
from auditord_hookspecs.query import AllOf, TimeCompares
from tests.builtin.apel.apel_receiver import Receiver
from tests.builtin.apel.apel_settings import apel_section, apel_settings

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)
JANUARY, FEBRUARY, MARCH = (Month(2026, month) for month in (1, 2, 3))
SINCE = JANUARY.start


def job(name: str, stop: datetime, site: str = "a", vo: str = "atlas", cpu: int = 3_000) -> Record:
    components = (Component("Cores", 1, (Score("HEPscore23", 10.0),)), Component("TotalCPU", cpu, ()))
    meta: dict[str, tuple[str, ...]] = {"site_id": (site,), "voms": (vo,), "submit_host": ("ce",)}
    return Record(name, stop - timedelta(hours=1), components, stop, meta)


def unscored(stop: datetime) -> Record:
    return msgspec.structs.replace(job("bad", stop, vo="x"), components=(Component("Cores", 1, ()),))


def beyond_apel(stop: datetime) -> Record:
    """Return a job of 63 years on a node whose benchmark is nonsense: its product does not fit APEL's column."""
    components = (Component("Cores", 1, (Score("HEPscore23", 9e6),)), Component("TotalCPU", 1, ()))
    return msgspec.structs.replace(
        job("bad", stop), components=components, start_time=stop - timedelta(seconds=2 * 10**9)
    )


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


@dataclass
class Recorder:
    """A broker that remembers."""

    messages: list[Message] = field(default_factory=list[Message])
    labels: list[str] = field(default_factory=list[str])
    receiver: Receiver = field(default_factory=Receiver)
    refuses: str | None = None
    away: bool = False
    largest: int = 1_000
    attempts: int = 0

    async def publish(self, message: Message, label: str) -> str:
        self.attempts += 1
        if self.away:
            raise BrokerUnavailable("nobody there")
        if self.refuses is not None and self.refuses in message.text:
            raise BrokerRefused("not this one")
        if message.records > self.largest:
            raise MessageTooLarge("413")
        if not message.text.startswith("{"):
            self.receiver.take(message.text)
        self.messages.append(message)
        self.labels.append(label)
        return f"id{len(self.messages)}"

    def taken(self) -> list[tuple[str, str]]:
        """Site and month of each message since the last time."""
        taken = sorted({(message.site, str(message.month)) for message in self.messages})
        self.messages.clear()
        return taken


def settings(since: datetime | None = SINCE, *, jobs: bool = False) -> ApelConfig:
    return apel_settings(sites={"SITE-A": ["a"], "SITE-B": ["b"]}, since=since, jobs=jobs)


def context_of(*records: Record) -> FakePluginContext:
    return FakePluginContext(instance="apel", moment=NOW, stored=records)


# -- from when on -----------------------------------------------------------------------------------------------------


async def test_the_first_run_asks_from_when_on() -> None:
    context, broker = context_of(job("1", days_ago(1))), Recorder()
    with pytest.raises(NotReported, match="publish_since is not set"):
        await publish(settings(None), context, broker)
    assert (broker.messages, context.state) == ([], None)
    await publish(settings(), context, broker)
    await publish(settings(None), context, broker)  # it is known now
    assert [str(month) for _, month in broker.taken()] == ["2026-03"]


async def test_a_month_that_begins_before_is_skipped_and_named(caplog: pytest.LogCaptureFixture) -> None:
    since = datetime(2026, 2, 10, tzinfo=UTC)
    context, broker = context_of(*[job(str(days), days_ago(days)) for days in (1, 20, 35, 60)]), Recorder()
    with caplog.at_level(logging.INFO):
        await publish(settings(since), context, broker, all_months=True)
    assert broker.taken() == [("SITE-A", "2026-03")]
    assert "auditord apel republish --month 2026-02 --force" in caplog.text
    assert "sent with zeros" not in caplog.text
    with pytest.raises(NotReported, match="publish_since is 2026-02-10"):
        await republish(settings(since), context, broker, period=FEBRUARY.window)
    assert broker.taken() == []
    await republish(settings(since), context, broker, period=FEBRUARY.window, force=True)
    assert broker.taken() == [("SITE-A", "2026-02")]
    assert broker.receiver.total("NumberOfJobs") == 3  # February is whole
    await publish(settings(since), context, broker, all_months=True)
    assert broker.taken() == [("SITE-A", "2026-03")]


async def test_nothing_is_due_before_the_beginning() -> None:
    context, broker = context_of(job("1", days_ago(1))), Recorder()
    await publish(settings(datetime(2026, 6, 1, tzinfo=UTC)), context, broker, all_months=True)
    assert broker.messages == []


# -- which months -----------------------------------------------------------------------------------------------------


async def test_recent_months_always_older_ones_once_a_day_if_they_changed() -> None:
    records = [job("1", days_ago(1)), job("2", days_ago(30)), job("3", days_ago(65))]
    context, broker = context_of(*records), Recorder()
    await publish(settings(), context, broker)
    assert broker.taken() == [("SITE-A", "2026-01"), ("SITE-A", "2026-02"), ("SITE-A", "2026-03")]
    context.stored = [*records, job("late", days_ago(66))]
    await publish(settings(), context, broker)
    assert broker.taken() == [("SITE-A", "2026-02"), ("SITE-A", "2026-03")]
    context.moment += timedelta(days=1)
    await publish(settings(), context, broker)
    assert broker.taken() == [("SITE-A", "2026-01"), ("SITE-A", "2026-02"), ("SITE-A", "2026-03")]
    await publish(settings(), context, broker, all_months=True)
    assert broker.taken() == [("SITE-A", "2026-02"), ("SITE-A", "2026-03")]
    assert broker.receiver.total("NumberOfJobs") == 4


async def test_a_look_that_failed_is_not_done() -> None:
    records = [job("1", days_ago(1)), job("2", days_ago(65)), job("3", days_ago(1), site="b")]
    context, broker = context_of(*records), Recorder(refuses="Month: 1\n")
    with pytest.raises(NotReported, match="SITE-A 2026-01: not this one"):
        await publish(settings(), context, broker)
    assert broker.taken() == [("SITE-A", "2026-03"), ("SITE-B", "2026-03")]
    broker.refuses = None
    await publish(settings(), context, broker)
    assert ("SITE-A", "2026-01") in broker.taken()


async def test_a_clock_that_once_went_wrong_puts_no_look_off() -> None:
    context, broker = context_of(job("1", days_ago(65))), Recorder()
    context.moment += timedelta(days=4_000)
    await publish(settings(), context, broker)
    context.moment, context.stored = NOW, [job("1", days_ago(65)), job("late", days_ago(65))]
    await publish(settings(), context, broker)
    assert broker.receiver.total("NumberOfJobs") == 2


async def test_a_look_without_the_store_is_not_done() -> None:
    class Failing(FakePluginContext):
        fails = True

        async def aggregate(self, query: AggregateQuery) -> Aggregates:
            if self.fails and JANUARY.start in [each.moment for each in times_of(query)]:
                raise AuditordError("the answer was cut")
            return await super().aggregate(query)

    context, broker = (
        Failing(instance="apel", moment=NOW, stored=[job("1", days_ago(1)), job("2", days_ago(65))]),
        Recorder(),
    )
    with pytest.raises(NotReported, match="SITE-A 2026-01: the answer was cut"):
        await publish(settings(), context, broker)
    assert broker.taken() == [("SITE-A", "2026-03")]
    context.fails = False
    await publish(settings(), context, broker)
    assert ("SITE-A", "2026-01") in broker.taken()


def times_of(query: AggregateQuery) -> list[TimeCompares]:
    assert isinstance(query.where, AllOf)
    return [each for each in query.where.conditions if isinstance(each, TimeCompares)]


async def test_what_apel_would_refuse_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    context, broker = context_of(job("1", days_ago(1))), Recorder()

    def refusing(text: str, _now: datetime) -> Sequence[str]:
        return ["no"] if "summary" in text else []

    monkeypatch.setattr(reporting, "validate", refusing)
    with pytest.raises(NotReported, match="SITE-A 2026-03: APEL would refuse the report: no"):
        await publish(settings(), context, broker)
    assert broker.messages == []


async def test_a_broker_that_is_away_is_tried_once_for_each_site() -> None:
    records = [job(f"{site}{days}", days_ago(days), site=site) for site in "ab" for days in (1, 30, 65)]
    context, broker = context_of(*records), Recorder(away=True)
    with pytest.raises(NotReported):
        await publish(settings(), context, broker)
    assert broker.attempts == 2


async def test_one_sites_fault_does_not_stop_another(caplog: pytest.LogCaptureFixture) -> None:
    context, broker = context_of(job("1", days_ago(1)), job("2", days_ago(1), site="b")), Recorder(refuses="SITE-A")
    with pytest.raises(AuditordError, match="SITE-A 2026-03: not this one"):
        await publish(settings(), context, broker)
    assert broker.taken() == [("SITE-B", "2026-03")]
    assert "SITE-A 2026-03 was not reported" in caplog.text
    (family,) = metrics.FAILURES.collect()
    assert {"task": "apel", "site": "SITE-A"} in [sample.labels for sample in family.samples]


async def test_what_waits_goes_out_when_the_broker_is_back() -> None:
    context, broker = context_of(job("1", days_ago(65))), Recorder(away=True)
    with pytest.raises(NotReported, match="nobody there"):
        await publish(settings(), context, broker)
    outbox = read_state(context.state).sites["SITE-A"].months["2026-01"].outbox
    assert outbox is not None
    assert len(outbox.messages) == 2  # sync and summary
    broker.away = False
    await publish(settings(), context, broker)
    month = read_state(context.state).sites["SITE-A"].months["2026-01"]
    assert (month.outbox, month.ids, month.jobs, month.acknowledged) == (None, ("id1", "id2"), 1, NOW)


async def test_what_waits_of_a_month_that_did_not_change_is_not_planned_again() -> None:
    context, broker = context_of(job("1", days_ago(65))), Recorder(refuses="normalised")
    with pytest.raises(NotReported, match="not this one"):
        await publish(settings(), context, broker)
    assert [message.text.partition(":")[0] for message in broker.messages] == ["APEL-sync-message"]
    broker.refuses = None
    await publish(settings(), context, broker)
    headers = [message.text.partition(":")[0] for message in broker.messages]
    assert headers == ["APEL-sync-message", "APEL-normalised-summary-message"], "the sync message was acknowledged"


async def test_what_waits_of_a_month_that_changed_is_planned_again() -> None:
    context, broker = context_of(job("1", days_ago(65))), Recorder(away=True)
    with pytest.raises(NotReported, match="nobody there"):
        await publish(settings(), context, broker)
    context.stored, broker.away = [job("1", days_ago(65)), job("late", days_ago(65))], False
    await publish(settings(), context, broker)
    assert broker.receiver.total("NumberOfJobs") == 2
    month = read_state(context.state).sites["SITE-A"].months["2026-01"]
    assert (month.outbox, month.jobs) == (None, 2)
    broker.messages.clear()
    await publish(settings(), context, broker, all_months=True)
    assert broker.messages == [], "the digest that was acknowledged is that of what was sent"


# -- what is not believed ---------------------------------------------------------------------------------------------


async def test_a_store_that_lost_a_whole_month_withdraws_nothing() -> None:
    context, broker = context_of(job("1", days_ago(1)), job("2", days_ago(65))), Recorder()
    await publish(settings(), context, broker)
    broker.taken()
    context.stored = [job("1", days_ago(1))]
    with pytest.raises(NotReported, match="2026-01: the store no longer has jobs of this month"):
        await publish(settings(), context, broker, all_months=True)
    assert broker.taken() == [("SITE-A", "2026-03")]
    assert broker.receiver.total("NumberOfJobs") == 2


async def test_a_month_whose_jobs_lost_their_benchmark_keeps_what_apel_has() -> None:
    """A benchmark that was taken out of the options, or misspelt, must not set the months of before to zero."""
    context, broker = context_of(job("1", days_ago(1)), job("2", days_ago(65))), Recorder()
    await publish(settings(), context, broker)
    broker.taken()
    other = settings().model_copy(update={"benchmarks": (Benchmark(type="hepspec", score="HEPSPEC06"),)})
    with pytest.raises(NotReported, match=r"2026-01: no job can be reported.*nothing is withdrawn.*HEPSPEC06"):
        await publish(other, context, broker, all_months=True)
    assert broker.taken() == []
    context.stored = [job("1", days_ago(1)), unscored(days_ago(65))]
    with pytest.raises(NotReported, match="2026-01: no job"):
        await publish(settings(), context, broker, all_months=True)
    assert broker.taken() == [("SITE-A", "2026-03")]
    assert broker.receiver.total("NumberOfJobs") == 2


async def test_a_misspelt_site_id_keeps_what_apel_has() -> None:
    jobs = [job("1", days_ago(65)), job("2", days_ago(1)), job("3", days_ago(65), site="b")]
    context, broker = context_of(*jobs), Recorder()
    await publish(settings(), context, broker)
    broker.taken()
    misspelt = apel_settings(sites={"SITE-A": ["typo"], "SITE-B": ["b"]}, since=SINCE)
    for full in (True, False):
        with pytest.raises(
            NotReported, match=r"SITE-A: since 2026-01-01.* no jobs with typo in site_id.*sites_to_report"
        ):
            await publish(misspelt, context, broker, all_months=full)
    with pytest.raises(NotReported, match="no jobs with typo"):
        await republish(misspelt, context, broker, period=JANUARY.window)
    assert [site for site, _ in broker.taken() if site == "SITE-A"] == []
    assert broker.receiver.total("NumberOfJobs") == 3
    await publish(settings(), context, broker)
    context.stored = [job(each.record_id, each.stop_time or NOW, site="b") for each in jobs]
    await publish(settings(), context, broker, all_months=True)  # its jobs were corrected; its options are as they were
    assert {row["NumberOfJobs"] for row in broker.receiver.rows.values() if row["Site"] == "SITE-A"} == {"0"}


async def test_a_key_that_vanished_is_sent_with_zeros_once() -> None:
    context, broker = context_of(job("1", days_ago(65))), Recorder()
    await publish(settings(), context, broker)
    context.stored = [job("1", days_ago(65), vo="cms")]
    await publish(settings(), context, broker, all_months=True)
    assert [m.text.count("NumberOfJobs: 0\n") for m in broker.messages if "summary" in m.text] == [0, 1, 0]
    assert {row["VO"]: row["NumberOfJobs"] for row in broker.receiver.rows.values()} == {"atlas": "0", "cms": "1"}
    broker.messages.clear()
    await republish(settings(), context, broker, period=JANUARY.window)
    assert not any("NumberOfJobs: 0\n" in message.text for message in broker.messages)


async def test_a_submit_host_whose_jobs_were_all_left_out_is_counted_with_zero_once_they_are_gone() -> None:
    other = {"site_id": ("a",), "voms": ("atlas",), "submit_host": ("other-ce",)}
    lost, good = msgspec.structs.replace(unscored(days_ago(65)), meta=other), job("1", days_ago(65))
    context, broker = context_of(good, lost), Recorder()
    await publish(settings(), context, broker)
    assert {host: jobs for (_, host, *_), jobs in broker.receiver.sync.items()} == {"ce": 1, "other-ce": 1}
    context.stored = [good]  # corrected, or deleted
    broker.away = True
    with pytest.raises(NotReported):
        await publish(settings(), context, broker, all_months=True)
    broker.away = False
    await publish(settings(), context, broker, all_months=True)
    assert {host: jobs for (_, host, *_), jobs in broker.receiver.sync.items()} == {"ce": 1, "other-ce": 0}


async def test_a_row_that_apel_would_refuse_keeps_what_apel_has() -> None:
    context, broker = context_of(job("1", days_ago(65))), Recorder()
    await publish(settings(), context, broker)
    context.stored = [job("1", days_ago(65)), beyond_apel(days_ago(65)), job("2", days_ago(65), vo="cms")]
    await publish(settings(), context, broker, all_months=True)
    assert {row["VO"]: row["NumberOfJobs"] for row in broker.receiver.rows.values()} == {"atlas": "1", "cms": "1"}
    book = read_state(context.state).sites["SITE-A"].months["2026-01"]
    assert (book.stored, book.reportable, book.jobs) == (3, 1, 1)
    assert "NormalisedWallDuration" in book.problems[0]
    assert list(broker.receiver.sync.values()) == [3]
    context.stored = [job("2", days_ago(65), vo="cms")]  # now the key is gone
    await publish(settings(), context, broker, all_months=True)
    assert {row["VO"]: row["NumberOfJobs"] for row in broker.receiver.rows.values()} == {"atlas": "0", "cms": "1"}


async def test_state_of_a_newer_version_is_left_alone() -> None:
    context = context_of()
    context.state = {"version": 2}
    with pytest.raises(AuditordError, match="newer auditord"):
        await publish(settings(), context, Recorder())


# -- by hand ----------------------------------------------------------------------------------------------------------


async def test_a_period_is_widened_to_whole_months_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    context, broker = context_of(*[job(str(days), days_ago(days)) for days in (1, 30, 65)]), Recorder()
    period = Window(datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 2, 2, tzinfo=UTC))
    with caplog.at_level(logging.INFO):
        await republish(settings(), context, broker, period=period, sites=["SITE-A"])
    assert broker.taken() == [("SITE-A", "2026-01"), ("SITE-A", "2026-02")]
    assert "cover whole UTC months, since a part would replace the whole: reporting 2026-01 to 2026-02" in caplog.text


async def test_an_unknown_site_and_an_empty_period_are_refused() -> None:
    context = context_of()
    with pytest.raises(NotReported, match="SITE-C: not in sites_to_report, which has SITE-A, SITE-B"):
        await republish(settings(), context, Recorder(), period=MARCH.window, sites=["SITE-C"])
    with pytest.raises(AuditordError, match="ends before it begins"):
        await republish(settings(), context, Recorder(), period=Window(NOW, NOW))


async def test_a_message_that_is_too_large_is_halved_until_it_is_not() -> None:
    records = [job(str(number), days_ago(1), vo=f"vo{number}") for number in range(5)]
    context, broker = context_of(*records), Recorder(largest=1)
    await publish(settings(), context, broker)
    assert [message.records for message in broker.messages] == [1] * 6  # the one to compare with, then the jobs
    assert broker.receiver.total("NumberOfJobs") == 5
    assert len(set(broker.labels)) == 6
    broker.largest = 0
    with pytest.raises(NotReported, match="a single record is too large"):
        await publish(settings(), context, broker)


async def test_a_dry_run_shows_each_message_and_does_nothing() -> None:
    context, broker = context_of(job("1", days_ago(1)), job("bad", days_ago(1), vo="x", cpu=10**9)), Recorder()
    context.dry_run = True
    await run_apel(settings(), context)
    state_of_dry_run, shown = context.state, context.shown
    assert "SITE-B 2026-03: there is nothing to report" in shown
    context.dry_run, context.state = False, None
    await publish(settings(), context, broker)
    assert shown[0] == "Nothing could be sent: /none.pem: cannot be read: No such file or directory"
    assert [text for text in shown if text.startswith("APEL-")] == [m.text.removesuffix("\n") for m in broker.messages]
    assert any(text.startswith("! ") and "milliseconds" in text for text in shown)
    assert state_of_dry_run is not None  # the host keeps it from the disk


async def test_accelerators_go_out_beside_and_only_when_they_changed() -> None:
    section = apel_section(sites={"SITE-A": ["a"]}, since=SINCE)
    section["accelerators"] = {"associated_record_type": "cloud", "topic": "gpus"}
    config = ApelConfig.model_validate(section)
    record = job("1", days_ago(65))
    with_gpus = msgspec.structs.replace(record, components=(*record.components, Component("GPU", 2, ())))
    context, broker = context_of(with_gpus), Recorder()
    await publish(config, context, broker)
    assert [message.text.startswith("{") for message in broker.messages] == [False, False, True]
    await publish(config, context, broker, all_months=True)
    assert len(broker.messages) == 3


# -- figures ----------------------------------------------------------------------------------------------------------


async def test_gauges_tell_what_is_stored_reported_and_acknowledged() -> None:
    registry = CollectorRegistry()
    registry.register(metrics.JOBS)
    registry.register(metrics.ACKNOWLEDGED)
    context = context_of(job("1", days_ago(1)), job("2", days_ago(1)), unscored(days_ago(1)))
    context.instance = "gauges"
    broker = Recorder(away=True)

    def stages() -> Sequence[float | None]:
        labels = {"task": "gauges", "site": "SITE-A", "month": "2026-03"}
        return [
            registry.get_sample_value("auditord_apel_jobs", {**labels, "stage": stage})
            for stage in ("stored", "reported", "acknowledged")
        ]

    with pytest.raises(NotReported):
        await publish(settings(), context, broker)
    assert stages() == [3, 2, 0]
    broker.away = False
    last = "auditord_apel_acknowledged_timestamp_seconds", {"task": "gauges", "site": "SITE-A"}
    assert registry.get_sample_value(*last) is None
    await publish(settings(), context, broker)
    assert stages() == [3, 2, 2]
    assert registry.get_sample_value(*last) == context.now().timestamp()
