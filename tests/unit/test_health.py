"""The daemon's word about itself: health and its own metrics."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from auditord import health as health_module
from auditord.errors import StoreUnavailable
from auditord.health import Health, TaskHealth
from auditord.metrics import CountedKey, DatabaseMetrics, TaskMetrics, exposition
from auditord.spool import QueueStatistics, SpoolStatistics
from auditord.tasks.gauges import SpoolMetrics

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


async def works() -> None:
    pass


async def fails() -> None:
    raise StoreUnavailable("away")


def make_health(**next_runs: datetime) -> Health:
    health = Health(works, next_runs.get)
    health.expect(TaskHealth("slurm", "slurm", "collectors"))
    return health


@pytest.mark.anyio
async def test_a_part_that_does_not_answer_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "ANSWER_WITHIN", 0.01)
    assert not await Health(anyio.sleep_forever, lambda _: None).alive()


@pytest.mark.anyio
async def test_a_full_disk_is_no_reason_for_a_restart() -> None:
    assert await Health(fails, lambda _: None).alive()


def test_the_life_of_a_task() -> None:
    health = make_health(slurm=NOON + timedelta(minutes=5))
    health.note_start("collectors", "slurm", NOON)
    (task,) = health.tasks()
    assert (task.running, task.last_started, task.next_run) == (True, NOON, NOON + timedelta(minutes=5))
    health.note_failure("collectors", "slurm", "sacct is missing", running=False)
    health.note_failure("collectors", "slurm", "sacct is missing", running=False)
    (task,) = health.tasks()
    assert (task.running, task.last_error, task.failures, task.last_success) == (False, "sacct is missing", 2, None)
    health.note_success("collectors", "slurm", NOON, running=False, remarks=["no record has component Memory"])
    (task,) = health.tasks()
    assert (task.last_error, task.failures, task.last_success) == (None, 0, NOON)
    assert task.remarks == ["no record has component Memory"]
    health.note_success("collectors", "slurm", NOON, running=False)
    assert not health.tasks()[0].remarks
    health.note_failure("collectors", "slurm", "sacct is missing", running=False)
    health.note_start("collectors", "slurm", NOON + timedelta(hours=1))
    before = health.tasks()
    health.note_wait("collectors", "slurm")
    (task,) = health.tasks()
    assert [replace(task, running=True)] == before


def lines(registry: CollectorRegistry) -> set[str]:
    return set(exposition(registry).decode().splitlines())


def test_the_gauges_of_auditor_have_their_names_and_labels() -> None:
    registry = CollectorRegistry()
    keys = (
        CountedKey("num_records_database_per_site", "site", "site_id"),
        CountedKey("num_records_database_per_group", "group_id", "group_id"),
    )
    statistics = DatabaseMetrics(total=True, keys=keys, max_values=200)
    registry.register(statistics)
    assert "num_records_database" not in generate_latest(registry).decode()
    statistics.update(4, {"site_id": {"A": 3}, "group_id": {"group1": 3, 'gro"up\n2': 1}}, 2)
    assert lines(registry) >= {
        "# TYPE num_records_database gauge",
        "num_records_database 4",
        "auditord_differences_records 2.0",
        'num_records_database_per_site{site="A"} 3',
        'num_records_database_per_group{group_id="group1"} 3',
        'num_records_database_per_group{group_id="gro\\"up\\n2"} 1',
    }


def test_large_counts_are_whole_numbers_too_and_names_stay_names() -> None:
    registry = CollectorRegistry()
    keys = (CountedKey("num_records_database_per_site", "site", "site_id"),)
    statistics = DatabaseMetrics(total=True, keys=keys, max_values=200)
    registry.register(statistics)
    statistics.update(123_456_789, {"site_id": {"} 4.0": 10_000_000}}, 0)
    assert lines(registry) >= {
        "num_records_database 123456789",
        'num_records_database_per_site{site="} 4.0"} 10000000',
    }


@given(st.dictionaries(st.text(), st.integers(0, 2**53), max_size=5))
def test_counts_are_what_prometheus_own_writer_makes_of_them(counts: dict[str, int]) -> None:
    registry, keys = CollectorRegistry(), (CountedKey("num_records_database_per_user", "user_id", "user_id"),)
    statistics = DatabaseMetrics(total=True, keys=keys, max_values=200)
    registry.register(statistics)
    for shift in (0, 1):  # also the second time, when there is a text already
        statistics.update(sum(counts.values()), {"user_id": {user: count + shift for user, count in counts.items()}}, 0)
        for _ in range(2):
            assert samples(exposition(registry)) == samples(generate_latest(registry))


def samples(text: bytes) -> Mapping[str, list[tuple[Mapping[str, str], float]]]:
    families = text_string_to_metric_families(text.decode())
    return {each.name: [(sample.labels, sample.value) for sample in each.samples] for each in families}


def test_the_total_may_be_left_out() -> None:
    statistics = DatabaseMetrics(total=False, keys=(), max_values=200)
    statistics.update(4, {}, 0)
    assert [family.name for family in statistics.collect()] == [
        "auditord_feed_lag_seconds",
        "auditord_differences_records",
    ]


def test_an_empty_queue_is_shown_as_zero() -> None:
    registry = CollectorRegistry()
    metrics = SpoolMetrics({"local": "local"}, lambda: NOON)
    registry.register(metrics)
    assert 'auditord_queue_entries{kind="local",task="local"} 0.0' in lines(registry)
    metrics.statistics = SpoolStatistics(
        queues={"gone": QueueStatistics(7, NOON - timedelta(seconds=90))},
        quarantined={("job", "slurm"): 2},
        checkpoints={"slurm": NOON - timedelta(seconds=5)},
        refused_bodies=3,
        dropped_bodies=1,
    )
    assert lines(registry) >= {
        'auditord_queue_entries{kind="",task="gone"} 7.0',
        'auditord_queue_oldest_age_seconds{kind="",task="gone"} 90.0',
        'auditord_quarantine_entries{stage="job",task="slurm"} 2.0',
        'auditord_checkpoint_age_seconds{task="slurm"} 5.0',
        "auditord_refused_bodies_total 3.0",
        "auditord_dropped_bodies_total 1.0",
    }


def test_two_daemons_do_not_share_figures() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    TaskMetrics(first).skipped_ticks.labels("slurm", "slurm").inc()
    TaskMetrics(second)
    assert 'auditord_skipped_ticks_total{kind="slurm",task="slurm"} 1.0' in lines(first)
    assert 'task="slurm"' not in generate_latest(second).decode()


def test_values_beyond_the_most_are_counted_together() -> None:
    statistics = DatabaseMetrics(
        total=False, keys=(CountedKey("num_records_database_per_group", "group_id", "group_id"),), max_values=2
    )
    statistics.update(15, {"group_id": {"a": 1, "b": 5, "c": 2, "d": 7}}, 0)
    [family] = [each for each in statistics.collect() if each.name == "num_records_database_per_group"]
    assert {sample.labels["group_id"]: sample.value for sample in family.samples} == {"d": 7, "b": 5, "other": 3}
