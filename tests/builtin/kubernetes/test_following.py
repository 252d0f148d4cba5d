"""Lists and watches: every pod exactly once, whatever happens to the connection."""

import random
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import anyio
import pytest
import stamina.instrumentation

from auditord_builtin.kubernetes import reading
from auditord_hookspecs import AuditordError, Record, Window
from tests.builtin.kubernetes.conftest import Site
from tests.builtin.kubernetes.pod_maker import NOW, START, at, make_pod, over, running

pytestmark = pytest.mark.anyio
MINUTE = timedelta(minutes=1)
QUICK: dict[str, Any] = {"page_size": 4, "quiet": 0.02}


def label(record: Record, name: str) -> str:
    return (record.meta or {})[name][0]


def written(pod: dict[str, Any], moment: datetime) -> dict[str, Any]:
    """The pod when somebody has written to it last at a moment."""
    pod["metadata"]["managedFields"] = [{"manager": "controller", "operation": "Update", "time": at(moment)}]
    return pod


def restart_without(site: Site, *pods: dict[str, Any]) -> None:
    """Pods go while nobody watches, and the server forgets what happened."""
    for pod in pods:
        site.server.delete(pod)
    site.server.compact()


def amounts(record: Record) -> dict[str, int]:
    return {component.name: component.amount for component in record.components}


async def test_a_pod_that_is_over_makes_auditors_record(site: Site) -> None:
    site.server.put(over(make_pod(), NOW - MINUTE))
    [record] = await site.collect(record_prefix="KUBE", components="auditor")
    assert record.record_id == "KUBE-grid-job1-uid-grid-job1"
    assert (record.start_time, record.stop_time) == (START, NOW - MINUTE)
    assert record.meta == {
        "podname": ("job1",),
        "namespace": ("grid",),
        "status": ("Succeeded",),
        "site_id": ("NOT_CONFIGURED",),
        "group_id": ("grid",),
        "outcome": ("completed",),
    }
    assert amounts(record) == {"naive_cpu_time": 2 * (59 * 60 - 5), "memory_limit": 2**30}


async def test_lists_come_in_pages_and_then_only_what_happens(site: Site) -> None:
    for number in range(25):
        site.server.put(over(make_pod(f"job{number}"), NOW - MINUTE))
    first = await site.collect(page_size=10)
    assert [query.get("limit") for query in site.server.asked if "watch" not in query] == ["10"] * 3 + ["1"]
    late = site.server.put(running(make_pod("late")))
    assert await site.collect(page_size=10) == []
    site.server.put(over(late, NOW))
    [last] = await site.collect(page_size=10)
    assert len({record.record_id for record in [*first, last]}) == 26
    assert [query for query in site.server.asked[5:] if "watch" not in query] == []


async def test_pods_that_ended_long_ago_are_left_to_whoever_counted_them(site: Site) -> None:
    site.server.put(over(make_pod("old"), NOW - MINUTE))
    assert await site.collect(earliest_datetime=None) == []
    assert site.context.kept[0].skipped == {"ended outside the period": 1}
    site.context.moment += MINUTE
    site.server.put(over(make_pod("new"), NOW))
    assert [label(record, "podname") for record in await site.collect(earliest_datetime=None)] == ["new"]


async def test_a_pod_that_is_deleted_while_it_runs_ends_then(site: Site) -> None:
    pod = site.server.put(running(make_pod()))
    assert await site.collect() == []
    site.server.delete(pod)
    [record] = await site.collect()
    assert (record.stop_time, label(record, "status")) == (NOW, "Deleted")
    assert amounts(record) == {"CoreSeconds": 2 * 3600, "MemorySeconds": 1024 * 3600, "WaitTime": 0}
    assert site.context.pending_values == {}


async def test_a_deletion_that_is_heard_of_late_ended_at_its_own_time(site: Site) -> None:
    pod = running(make_pod())
    site.server.put(pod)
    await site.collect()
    pod["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:30Z"
    site.server.put(pod)
    site.server.delete(pod)
    site.context.moment += 10 * MINUTE
    [record] = await site.collect()
    assert record.stop_time == NOW + timedelta(seconds=30)


async def test_a_pod_that_comes_and_goes_between_two_runs_is_counted(site: Site) -> None:
    await site.collect()
    pod = site.server.put(running(make_pod()))
    site.server.put(over(pod, NOW))
    site.server.delete(over(pod, NOW))
    assert [label(record, "status") for record in await site.collect()] == ["Succeeded"]


async def test_a_pod_that_never_started_is_skipped(site: Site) -> None:
    pod = site.server.put(make_pod())
    await site.collect()
    site.server.delete(pod)
    assert await site.collect() == []
    assert Counter(site.context.kept[-1].skipped) == {"never started": 1}


@pytest.mark.parametrize("by_event", [True, False])
async def test_a_watch_that_expires_leads_to_a_list(site: Site, by_event: bool) -> None:  # noqa: FBT001 a parameter
    site.server.faults.expired_by_event = by_event
    ended, stays, vanishes = (running(make_pod(name)) for name in ("ended", "stays", "vanishes"))
    for pod in (ended, stays, vanishes):
        site.server.put(pod)
    await site.collect()
    site.context.moment += 10 * MINUTE
    site.server.put(over(ended, NOW + 2 * MINUTE))
    site.server.delete(vanishes)
    site.server.compact()
    records = {label(record, "podname"): record for record in await site.collect()}
    assert set(records) == {"ended", "vanishes"}
    assert records["ended"].stop_time == NOW + 2 * MINUTE
    assert records["vanishes"].stop_time == NOW  # it was there then; nobody knows more
    assert [key for key in site.context.pending_values if "stays" in key]
    assert await site.collect() == []


async def test_a_cluster_that_was_rebuilt_is_listed_although_its_versions_are_lower(site: Site) -> None:
    """A real server accepts a version that it has not reached yet, and is silent until then."""
    site.server.version = 5000
    lost = site.server.put(running(make_pod("lost")))
    await site.collect()
    site.context.moment += 10 * MINUTE
    site.server.delete(lost)
    site.server.version = 100
    site.server.events.clear()
    site.server.put(over(make_pod(), NOW + 5 * MINUTE))
    stops = {label(record, "podname"): record.stop_time for record in await site.collect()}
    assert stops == {"lost": NOW, "job1": NOW + 5 * MINUTE}


async def test_a_pod_that_vanishes_after_the_clock_was_ahead_ends_in_the_past(site: Site) -> None:
    first, second = (site.server.put(running(make_pod(name))) for name in ("first", "second"))
    site.context.moment = NOW + timedelta(days=30)
    assert await site.collect() == []
    ends = list[datetime | None]()
    for hour, pod in enumerate((first, second), start=1):
        site.context.moment = NOW + timedelta(hours=hour)
        assert await site.collect() == []
        site.server.delete(pod)
        site.server.compact()
        site.context.moment += timedelta(minutes=10)
        ends += [record.stop_time for record in await site.collect()]
    later = NOW + timedelta(minutes=10)
    assert all(end is not None and end <= later + timedelta(hours=hour) for hour, end in enumerate(ends, start=1))
    assert len(ends) == 2


async def test_a_pod_that_vanishes_in_a_busy_cluster_counts_until_the_last_event(site: Site) -> None:
    """Always more to read, never quiet; then the server has forgotten everything, and the pod is not there."""
    busy: dict[str, Any] = {"watch_for": "1ms", "page_size": 3, "quiet": 30}
    await site.collect(watch_for="1ms", page_size=3)
    site.context.moment += 10 * MINUTE
    pod = site.server.put(written(running(make_pod(), NOW + MINUTE), NOW + MINUTE))
    site.server.put(written(make_pod("other"), NOW + 9 * MINUTE))
    site.server.put(written(make_pod("another"), NOW + 9 * MINUTE))
    await site.collect(**busy)
    restart_without(site, pod)
    [record] = await site.collect()
    assert (record.start_time, record.stop_time) == (NOW + MINUTE, NOW + 9 * MINUTE)


async def test_what_is_known_never_lies_ahead_of_the_clock(site: Site) -> None:
    """Times that somebody who may write pods has noted in them."""
    await site.collect(watch_for="1ms", page_size=2)
    pod = site.server.put(written(running(make_pod()), NOW))
    site.server.put(written(make_pod("forged"), NOW + 9999 * MINUTE))
    await site.collect(watch_for="1ms", page_size=2)
    restart_without(site, pod)
    [record] = await site.collect()
    assert record.stop_time == NOW


async def test_a_pod_seen_by_a_list_that_was_never_complete_counts_until_then(site: Site) -> None:
    early, late = running(make_pod("a")), running(make_pod("b"), NOW + 5 * MINUTE)
    site.server.put(early)
    await site.collect(page_size=2)
    site.context.moment += 10 * MINUTE
    site.server.compact()
    site.server.put(late)
    site.server.put(make_pod("c"))
    site.server.faults.cut_list_at = 2
    with pytest.raises(AuditordError, match="cannot list pods"):
        await site.collect(page_size=2)
    site.context.moment += 10 * MINUTE
    restart_without(site, early, late)
    stops = {label(record, "podname"): record.stop_time for record in await site.collect()}
    assert stops == {"a": NOW + 10 * MINUTE, "b": NOW + 10 * MINUTE}


async def test_a_pod_counts_until_all_was_known_also_when_namespaces_become_all(site: Site) -> None:
    pod = site.server.put(running(make_pod(namespace="a")))
    await site.collect(job_filter={"namespace": ["b", "a"]})
    site.context.moment += 10 * MINUTE
    await site.collect(job_filter={"namespace": ["b", "a"]})
    site.server.delete(pod)
    site.context.moment += 10 * MINUTE
    [record] = await site.collect()
    assert record.stop_time == NOW + 10 * MINUTE


async def test_all_namespaces_are_watched_at_the_same_time(site: Site) -> None:
    names = [f"n{number}" for number in range(120)]
    await site.collect(job_filter={"namespace": names}, quiet=1)
    assert site.server.most_watched == len(names)


async def test_a_server_that_starts_is_waited_for_with_growing_pauses(site: Site) -> None:
    await site.collect()
    site.server.put(over(make_pod(), NOW))
    site.server.faults.unready, waits = 4, list[float]()
    hooks = stamina.instrumentation.get_on_retry_hooks()
    stamina.instrumentation.set_on_retry_hooks([lambda details: waits.append(details.wait_for)])
    try:
        with stamina.set_testing(False):
            assert len(await site.collect(watch_for="1m")) == 1
    finally:
        stamina.instrumentation.set_on_retry_hooks(hooks)
    assert len(waits) == 4
    assert waits[3] >= 8 * 0.1  # the first, doubled three times; the rest is left to chance


async def test_a_server_that_does_not_come_back_fails_the_run(site: Site) -> None:
    await site.collect()
    site.server.faults.unready = 1000
    with pytest.raises(AuditordError, match="all namespaces: the API server answered 503: the server is starting"):
        await site.collect()


async def test_pods_found_by_a_list_and_gone_by_the_next_are_closed(site: Site) -> None:
    pods = [running(make_pod(f"job{number}")) for number in range(30)]
    for pod in pods:
        site.server.put(pod)
    site.server.faults.expire_tokens = 1
    assert await site.collect(page_size=10) == []
    assert [query.get("limit") for query in site.server.asked if "watch" not in query] == ["10", "10", None, "1"]
    assert len(site.context.pending_values) == 30


async def test_connections_that_are_cut_lose_and_double_nothing(site: Site) -> None:
    await site.collect()
    for number in range(20):
        site.server.put(over(make_pod(f"job{number}"), NOW))
    site.server.faults.cut_watch = [0, 3, 0, 5, 1]
    records: list[Record] = []
    for _ in range(4):
        records += await site.collect()
    assert sorted(Counter(label(record, "podname") for record in records).values()) == [1] * 20
    assert len(records) == 20


async def test_a_cut_list_fails_the_run_and_changes_nothing(site: Site) -> None:
    site.server.put(over(make_pod(), NOW))
    site.server.faults.cut_list = 1
    with pytest.raises(AuditordError, match="cannot list pods"):
        await site.collect()
    assert site.context.checkpoint is None
    assert len(await site.collect()) == 1


async def test_a_namespace_that_is_forbidden_does_not_stop_the_others(site: Site) -> None:
    site.server.put(over(make_pod(namespace="grid"), NOW))
    site.server.put(over(make_pod(namespace="secret"), NOW))
    site.server.put(over(make_pod(namespace="other"), NOW))
    site.server.faults.refuse = {"secret"}
    chosen = {"namespace": ["grid", "secret"]}
    with pytest.raises(AuditordError, match=r"namespace secret: the API server refuses .*list, watch and get"):
        await site.collect(job_filter=chosen)
    assert set(site.context.checkpoint["scopes"]) == {"grid"}
    site.server.faults.refuse = set()
    assert [label(record, "namespace") for record in await site.collect(job_filter=chosen)] == ["secret"]


async def test_a_watch_that_is_never_answered_does_not_stop_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "REQUEST_SECONDS", 0.1)
    chosen = {"namespace": ["grid", "mute"]}
    await site.collect(job_filter=chosen)
    site.server.put(over(make_pod(namespace="grid"), NOW))
    site.server.faults.mute = "mute"
    with anyio.fail_after(10), pytest.raises(AuditordError, match="namespace mute: the watch was interrupted"):
        await site.collect(job_filter=chosen, watch_for="200ms")
    assert kept_ids(site) == ["-grid-job1-uid-grid-job1"]


async def test_only_pods_that_match_the_selectors_are_asked_for(site: Site) -> None:
    site.server.put(over(make_pod("a", app="batch", tier="1"), NOW))
    site.server.put(over(make_pod("b", app="web", tier="1"), NOW))
    chosen = {"labels": ["app==batch", "tier=1"], "status": ["Succeeded"]}
    assert [label(record, "podname") for record in await site.collect(job_filter=chosen)] == ["a"]
    assert site.server.asked[0]["labelSelector"] == "app==batch,tier=1"


async def test_pods_that_are_not_selected_any_more_are_no_dead_pods(site: Site) -> None:
    web, batch = running(make_pod("a", app="web")), running(make_pod("b", app="batch"))
    gone = running(make_pod("c", app="web"))
    for pod in (web, batch, gone):
        site.server.put(pod)
    await site.collect()
    site.server.delete(gone)
    records = await site.collect(job_filter={"labels": ["app=batch"]})
    assert [label(record, "podname") for record in records] == ["c"]
    assert list(site.context.pending_values) == ["pod/uid-grid-b"]


async def test_an_api_server_that_fails_after_a_list_loses_no_pod_that_the_list_ended(site: Site) -> None:
    ended, gone = running(make_pod("ended", app="batch")), running(make_pod("gone", app="batch"))
    for pod in (ended, gone):
        site.server.put(pod)
    await site.collect()
    site.server.put(over(ended, NOW))
    site.server.delete(gone)
    site.server.faults.no_single_pods = True
    chosen = {"labels": ["app=batch"]}
    with pytest.raises(AuditordError, match="503"):
        await site.collect(job_filter=chosen)
    site.server.faults.no_single_pods = False
    restart_without(site, ended)
    await site.collect(job_filter=chosen)
    assert sorted(kept_ids(site)) == ["-grid-ended-uid-grid-ended", "-grid-gone-uid-grid-gone"]
    assert site.context.pending_values == {}


async def test_namespaces_that_are_given_up_are_forgotten_and_all_is_the_sum_of_them(site: Site) -> None:
    for namespace in ("a", "b"):
        site.server.put(running(make_pod(namespace=namespace)))
    await site.collect(job_filter={"namespace": ["a", "b"]})
    assert await site.collect(job_filter={"namespace": ["a"]}) == []
    assert list(site.context.pending_values) == ["pod/uid-a-job1"]
    assert await site.collect() == []
    assert len(site.context.pending_values) == 2


async def test_failed_pods_count_and_other_ends_can_be_left_out(site: Site) -> None:
    site.server.put(over(make_pod("f"), NOW, phase="Failed"))
    site.server.put(over(make_pod("s"), NOW))
    assert [label(one, "status") for one in await site.collect(job_filter={"status": ["Failed"]})] == ["Failed"]


async def test_running_pods_have_open_records_once(site: Site) -> None:
    pod = site.server.put(running(make_pod()))
    [opened] = await site.collect(open_records=True)
    assert (opened.stop_time, label(opened, "status")) == (None, "Running")
    assert amounts(opened) == {"WaitTime": 0}
    site.server.put({**pod, "status": {**pod["status"], "message": "still running"}})
    assert await site.collect(open_records=True) == []
    site.server.put(over(pod, NOW))
    [closed] = await site.collect(open_records=True)
    assert (closed.record_id, closed.start_time, closed.stop_time) == (opened.record_id, opened.start_time, NOW)


async def test_a_period_is_collected_again_from_what_is_still_there(site: Site) -> None:
    for number in range(3):
        site.server.put(over(make_pod(f"job{number}"), NOW - number * MINUTE))
    site.server.put(running(make_pod("runs")))
    await site.collect()
    before = (dict(site.context.remembered), site.context.checkpoint)
    site.context.window = Window(NOW - 90 * timedelta(seconds=1), NOW)
    assert [label(record, "podname") for record in await site.collect()] == ["job1"]
    assert (dict(site.context.remembered), site.context.checkpoint) == before
    assert site.context.progress == 1


async def test_what_has_not_changed_is_not_written_again(site: Site) -> None:
    pod = site.server.put(running(make_pod()))
    await site.collect()
    site.context.kept.clear()
    pod["status"]["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T11:30:00Z"}]
    site.server.put(pod)
    await site.collect()
    assert [dict(batch.pending) for batch in site.context.kept] == [{}]


async def test_a_server_that_is_down_is_reported(site: Site) -> None:
    site.server.faults.down = True
    with pytest.raises(AuditordError, match="all namespaces: the API server answered 503: etcdserver"):
        await site.collect()


def kept_ids(site: Site) -> list[str]:
    produced = [one for batch in site.context.kept for one in batch.records]
    return [one.record_id if isinstance(one, Record) else one.record.record_id for one in produced]


def _live(site: Site, chance: random.Random, alive: dict[str, Any], ended: set[str], step: int) -> None:
    for number in range(chance.randint(0, 6)):
        pod = make_pod(f"job{step}-{number}", chance.choice(["a", "b"]))
        alive[pod["metadata"]["uid"]] = site.server.put(running(pod))
    for uid in chance.sample(sorted(alive), min(len(alive), chance.randint(0, 5))):
        pod = alive.pop(uid)
        ended.add(uid)
        way = chance.choice(["ends", "ends and goes", "goes"])
        if "ends" in way:
            pod = site.server.put(over(pod, site.context.moment))
        if "goes" in way:
            site.server.delete(pod)


async def _caught_up(site: Site) -> None:
    for _ in range(100):
        await site.collect(**QUICK)
        if int(site.context.checkpoint["scopes"]["*"]["version"] or 0) >= site.server.version:
            return
    raise AssertionError(site.context.checkpoint)


@pytest.mark.parametrize("seed", range(4))
async def test_random_lives_and_faults_lose_and_double_nothing(site: Site, seed: int) -> None:
    """The same invariant as with the real server. A run may be given up after any of its batches, as by kill -9."""
    chance, alive, ended = random.Random(seed), dict[str, Any](), set[str]()  # noqa: S311 a test's dice
    await site.collect(**QUICK)
    for step in range(10):
        _live(site, chance, alive, ended, step)
        site.context.moment += MINUTE
        faults = site.server.faults
        if compacted := chance.random() < 0.3:  # what nobody has seen is not to be had after that
            await _caught_up(site)
            site.server.compact()
        faults.cut_watch = [chance.randint(0, 2)] if chance.random() < 0.3 else []
        faults.cut_list, faults.expire_tokens = int(chance.random() < 0.2), int(chance.random() < 0.2)
        faults.expired_by_event = chance.random() < 0.5
        await site.collect_and_die(chance.randint(0, 4), **QUICK)
        faults.cut_watch, faults.cut_list, faults.expire_tokens = [], 0, 0
        if compacted:
            await _caught_up(site)
    await _caught_up(site)
    assert Counter(kept_ids(site)) == Counter(
        {f"-{uid.split('-')[1]}-{uid.split('-', 2)[2]}-{uid}": 1 for uid in ended}
    )
