"""The meaning of a pod's JSON: runs, amounts, ends, labels."""

import copy
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.conversion import History, PodToConvert, convert, convert_pod, determine_end
from auditord_builtin.kubernetes.following import TrackedPods
from auditord_builtin.kubernetes.pods import restore_pod
from auditord_hookspecs import InvalidRecord, Produced, Quarantined, Record
from auditord_hookspecs.outcomes import Converted
from tests.builtin.kubernetes.pod_maker import NOW, START, Pod, at, container, make_pod, over, ran, running

S = timedelta(seconds=1)
LIMITS = [
    {"name": "naive_cpu_time", "key": "limits.cpu.time", "key_type": "Time", "optional": True},
    {"name": "memory_limit", "key": "limits.memory", "optional": True},
    {"name": "requested_cpu_time", "key": "requests.cpu.time", "key_type": "Time", "optional": True},
    {"name": "memory_request", "key": "requests.memory", "optional": True},
]


def record_of(*versions: Pod, **options: Any) -> Record:
    """The result of a collector that has seen these versions of a pod, the last of them its end."""
    config, ledger = KubernetesConfig.model_validate({"components": LIMITS, **options}), TrackedPods({})
    for version in versions[:-1]:
        ledger.remember(ledger.see(restore_pod(version), NOW))
    last = ledger.see(restore_pod(versions[-1]), NOW)
    finished = determine_end(config, last.pod, last.history, NOW)
    assert isinstance(finished, PodToConvert), finished
    made = convert_pod(config, finished)
    assert not isinstance(made, Quarantined), made
    return made.record


def amounts(record: Record) -> dict[str, int]:
    return {component.name: component.amount for component in record.components}


def with_containers(pod: Pod, *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> Pod:
    pod = copy.deepcopy(pod)
    pod["spec"]["containers"] = list(containers)
    pod["spec"]["initContainers"] = list(init)
    return pod


def evicted(pod: Pod, **status: Any) -> Pod:
    gone = running(pod)
    gone["status"] = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory.", **status}
    return gone


def test_amounts_of_several_containers_add_up() -> None:
    pod = with_containers(
        make_pod(),
        container("a", limits={"cpu": "1500m", "memory": "1.5Gi"}, requests={"cpu": "0.5", "memory": "100M"}),
        container("b", limits={"cpu": "250m", "memory": "1e6"}, requests={"cpu": "100m"}),
    )
    ended = over(pod, NOW)
    ended["status"]["containerStatuses"][1] = ran("b", START, START + 100 * S)
    found = amounts(record_of(ended))
    assert found == {
        "naive_cpu_time": int(1.5 * 3595 + 0.25 * 100),
        "memory_limit": 3 * 2**29 + 10**6,
        "requested_cpu_time": int(0.5 * 3595 + 0.1 * 100),
        "memory_request": 100 * 10**6,
    }


def test_a_container_without_limit_means_no_limit() -> None:
    pod = with_containers(make_pod(), container("a", limits={"cpu": "1"}), container("b", requests={"cpu": "1"}))
    assert amounts(record_of(over(pod, NOW))) == {"requested_cpu_time": 3595}


def test_restarted_containers_count_with_all_runs_that_were_seen() -> None:
    pod = make_pod()
    first, second, third = (running(pod) for _ in range(3))
    runs = [(START, START + 60 * S), (START + 120 * S, START + 200 * S), (START + 300 * S, NOW)]

    def status(number: int, *, ended: bool) -> dict[str, Any]:
        now = ran("main", runs[number][0], runs[number][1] if ended else None, restartCount=number)
        return {**now, "lastState": ran("main", *runs[number - 1])["state"] if number else {}}

    first["status"]["containerStatuses"] = [status(0, ended=False)]
    second["status"]["containerStatuses"] = [status(1, ended=False)]
    third["status"]["containerStatuses"] = [status(2, ended=True)]
    third["status"]["phase"] = "Succeeded"
    rules = {"meta": [{"name": "restarts", "key": "restarts", "key_type": "String"}]}
    record = record_of(first, second, third, **rules)
    assert amounts(record)["naive_cpu_time"] == 2 * (60 + 80 + 3300)
    assert (record.meta or {})["restarts"] == ("2",)
    assert amounts(record_of(third))["naive_cpu_time"] == 2 * (80 + 3300)  # the first is known to nobody any more


def restarted(pod: Pod, *spans: tuple[datetime, datetime | None], seen: int = 2) -> Pod:
    """The pod when its container is in the last of these runs; a status names as many as were ``seen``."""
    changed = running(pod)
    now, before = ran("main", *spans[-1], restartCount=len(spans) - 1), spans[-2:-1][: seen - 1]
    changed["status"]["containerStatuses"] = [{**now, "lastState": ran("main", *before[0])["state"] if before else {}}]
    return changed


def waiting(name: str, *, last: tuple[datetime, datetime] | None = None) -> dict[str, Any]:
    """The status of a container that is to run: its image is fetched, or it waits for another try."""
    state = {"waiting": {"reason": "CrashLoopBackOff" if last else "ContainerCreating"}}
    return {"name": name, "state": state, "lastState": ran(name, *last)["state"] if last else {}, "restartCount": 0}


def deleted(pod: Pod, at_time: datetime) -> Pod:
    changed = copy.deepcopy(pod)
    changed["metadata"]["deletionTimestamp"] = at(at_time)
    return changed


def test_a_run_whose_end_was_not_seen_ends_when_the_next_one_starts() -> None:
    first, second, third = (START, START + 40 * S), (START + 50 * S, START + 60 * S), (START + 61 * S, START + 85 * S)
    seen = restarted(make_pod(), (first[0], None))
    ended = restarted(make_pod(), first, second, third)  # two restarts between two of the kubelet's writes
    ended["status"]["phase"] = "Succeeded"
    record = record_of(seen, ended)
    assert (record.stop_time, amounts(record)["naive_cpu_time"]) == (START + 85 * S, 2 * (50 + 10 + 24))


def test_one_lost_end_does_not_make_the_known_ends_distrusted() -> None:
    seen = restarted(make_pod(), (START, None))
    ended = restarted(make_pod(), (START, None), (START + 50 * S, START + 60 * S), (START + 61 * S, START + 85 * S))
    ended["status"]["phase"] = "Failed"
    ended["metadata"]["managedFields"] = [{"manager": "kubelet", "operation": "Update", "time": at(START + 90 * S)}]
    assert record_of(seen, ended).stop_time == START + 85 * S


def test_a_crash_looping_pod_never_counts_for_longer_than_it_was_there() -> None:
    runs = [(NOW - (100_000 - 10 * number) * S, NOW - (100_000 - 10 * number - 9) * S) for number in range(10_000)]
    looks = [restarted(make_pod(), *runs[:number], (runs[number][0], None)) for number in range(0, 10_000, 999)]
    last = deleted(restarted(make_pod(), *runs[:-1], (runs[-1][0], None)), NOW)
    for each in (*looks, last):
        each["status"]["startTime"] = at(runs[0][0])
    assert amounts(record_of(*looks, last))["naive_cpu_time"] <= 2 * 100_000


def test_clocks_that_step_back_make_no_time_of_nothing() -> None:
    ended = restarted(make_pod(), (START, START + 60 * S), (START + 50 * S, START + 100 * S))
    ended["status"]["phase"] = "Succeeded"
    assert amounts(record_of(ended))["naive_cpu_time"] == 2 * 100


def test_a_deleted_pod_whose_container_never_ran_held_no_cpu_and_ends_with_the_deletion() -> None:
    pod = deleted(running(make_pod()), NOW - 60 * S)
    pod["status"] |= {"phase": "Pending", "containerStatuses": [waiting("main")]}
    record = record_of(pod)
    assert (record.stop_time, amounts(record)["naive_cpu_time"]) == (NOW - 60 * S, 0)
    assert amounts(record)["memory_limit"] == 2**30
    pod["spec"]["resources"] = {"limits": {"cpu": "3"}}
    assert amounts(record_of(pod))["naive_cpu_time"] == 0


def test_a_deleted_pod_that_came_no_further_than_its_init_container_counts_it_alone() -> None:
    main = container("main", limits={"cpu": "1"})
    pod = with_containers(make_pod(), main, init=(container("prepare", limits={"cpu": "4"}),))
    pod = deleted(running(pod), NOW - 60 * S)
    prepared = ran("prepare", START, START + 10 * S)
    pod["status"] |= {"containerStatuses": [waiting("main")], "initContainerStatuses": [prepared]}
    record = record_of(pod)
    assert (record.stop_time, amounts(record)["naive_cpu_time"]) == (NOW - 60 * S, 4 * 10)


def test_a_pod_whose_time_was_over_before_its_image_came_ends_when_the_kubelet_said_so() -> None:
    main = container("main", limits={"cpu": "1"})
    pod = running(with_containers(make_pod(), main, init=(container("prepare", limits={"cpu": "4"}),)))
    pod["metadata"]["managedFields"] = [{"manager": "kubelet", "operation": "Update", "time": at(NOW - 30 * S)}]
    pod["status"] |= {"phase": "Failed", "reason": "DeadlineExceeded", "containerStatuses": [waiting("main")]}
    pod["status"]["initContainerStatuses"] = [ran("prepare", START, START + 10 * S)]
    record = record_of(pod)
    assert (record.stop_time, amounts(record)["naive_cpu_time"]) == (NOW - 30 * S, 40)


def test_a_pod_whose_init_container_failed_ends_with_it() -> None:
    main = container("main", limits={"cpu": "1"})
    pod = running(with_containers(make_pod(), main, init=(container("prepare", limits={"cpu": "4"}),)))
    failed = ran("prepare", START, START + 10 * S)
    failed["state"]["terminated"]["exitCode"] = 1
    pod["metadata"]["managedFields"] = [{"manager": "kubelet", "operation": "Update", "time": at(START + 12 * S)}]
    pod["status"] |= {"phase": "Failed", "containerStatuses": [waiting("main")], "initContainerStatuses": [failed]}
    assert record_of(pod).stop_time == START + 10 * S


def test_a_pod_that_is_deleted_while_it_waits_for_another_try_ends_with_the_deletion() -> None:
    pod = deleted(running(make_pod()), NOW - 60 * S)
    pod["status"]["containerStatuses"] = [waiting("main", last=(START, START + 100 * S))]
    record = record_of(pod)
    assert (record.stop_time, amounts(record)["naive_cpu_time"]) == (NOW - 60 * S, 2 * 100)


def test_a_second_run_that_was_lost_with_its_node_ends_after_the_first() -> None:
    lost = running(make_pod())
    state = {"terminated": {"startedAt": None, "finishedAt": None, "exitCode": 137, "reason": "ContainerStatusUnknown"}}
    before = ran("main", START, START + 60 * S)["state"]
    lost["status"] |= {"phase": "Failed", "containerStatuses": [{**ran("main", START, NOW), "state": state}]}
    lost["status"]["containerStatuses"][0]["lastState"] = before
    assert record_of(lost).stop_time == NOW


def test_a_container_that_outlived_the_planned_deletion_counts_whole() -> None:
    pod = with_containers(make_pod(), container("a", limits={"cpu": "1"}), container("b", limits={"cpu": "1"}))
    pod = deleted(running(pod), NOW - 60 * S)
    pod["status"]["containerStatuses"][0] = ran("a", START, NOW - 50 * S)
    assert record_of(pod).stop_time == NOW - 50 * S


def test_init_and_sidecar_containers_count_as_the_scheduler_counts_them() -> None:
    pod = with_containers(
        make_pod(),
        container("main", limits={"cpu": "1", "memory": "1Gi"}),
        init=(
            container("prepare", limits={"cpu": "4", "memory": "512Mi"}),
            {**container("proxy", limits={"cpu": "500m", "memory": "256Mi"}), "restartPolicy": "Always"},
            container("fetch", limits={"cpu": "2", "memory": "3Gi"}),
        ),
    )
    ended = over(pod, NOW)
    ended["status"]["initContainerStatuses"] = [
        ran("prepare", START, START + 10 * S),
        ran("proxy", START + 10 * S, NOW),
        ran("fetch", START + 20 * S, START + 40 * S),
    ]
    found = amounts(record_of(ended))
    assert found["memory_limit"] == 3 * 2**30 + 2**28  # fetch beside the proxy needs more than main beside it
    assert found["naive_cpu_time"] == int(4 * 10 + 0.5 * 3590 + 2 * 20 + 3595)


def test_gpus_and_other_extended_resources() -> None:
    pod = with_containers(
        make_pod(),
        container("a", limits={"nvidia.com/gpu": "2", "example.org/fpga": "1"}),
        container("b", limits={"nvidia.com/mig-1g.5gb": "3"}, requests={"nvidia.com/mig-1g.5gb": "3"}),
    )
    pod["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": "2", "example.org/fpga": "1"}
    more = [{"name": "FPGA", "key": "requests.example.org/fpga"}, {"name": "GPU", "key": "gpu"}]
    assert amounts(record_of(over(pod, NOW), components=more)) == {"FPGA": 1, "GPU": 5}
    assert amounts(record_of(over(pod, NOW), components=more, gpus=[{"resource": "^nvidia.com/gpu$"}]))["GPU"] == 2


def test_resources_of_the_pod_and_those_that_a_container_really_got() -> None:
    pod = over(with_containers(make_pod(), container("a")), NOW)
    pod["spec"]["resources"] = {"limits": {"cpu": "3", "memory": "2Gi"}}
    assert amounts(record_of(pod)) == {"naive_cpu_time": 3 * 3595, "memory_limit": 2**31}
    resized = over(make_pod(), NOW)
    resized["status"]["containerStatuses"][0]["resources"] = {"limits": {"cpu": "4", "memory": "4Gi"}}
    assert amounts(record_of(resized))["naive_cpu_time"] == 4 * 3595


def test_overhead_belongs_to_the_requests() -> None:
    pod = over(make_pod(), NOW)
    pod["spec"]["overhead"] = {"memory": "120Mi"}
    found = amounts(record_of(pod))
    assert (found["memory_request"], found["memory_limit"]) == (2**30 + 120 * 2**20, 2**30)


def test_an_evicted_pod_whose_statuses_were_wiped_counts_from_what_was_seen() -> None:
    gone = evicted(make_pod())
    gone["metadata"]["managedFields"] = [
        {"manager": "kubelet", "operation": "Update", "time": at(NOW - 100 * S)},
        {"manager": "kubectl", "operation": "Update", "time": at(NOW)},
    ]
    record = record_of(running(make_pod()), gone)
    assert (record.start_time, record.stop_time) == (START, NOW - 100 * S)
    assert amounts(record)["naive_cpu_time"] == 2 * (3600 - 100 - 5)
    assert (record.meta or {})["status"] == ("Failed",)


def test_an_evicted_pod_that_nobody_saw_running_counts_from_its_start() -> None:
    changed = [{"type": "DisruptionTarget", "status": "True", "lastTransitionTime": at(NOW - 60 * S)}]
    record = record_of(evicted(make_pod(), startTime=at(START), conditions=changed))
    assert (record.stop_time, amounts(record)["naive_cpu_time"]) == (NOW - 60 * S, 2 * 3540)


def test_a_pod_that_lost_its_node_ends_when_it_was_seen_to() -> None:
    lost = running(make_pod())
    lost["status"]["phase"] = "Failed"
    lost["status"]["containerStatuses"] = [
        {**ran("main", START, NOW), "state": {"terminated": {"startedAt": None, "finishedAt": None, "exitCode": 137}}}
    ]
    assert record_of(running(make_pod()), lost).stop_time == NOW


def test_times_that_stand_for_none_are_none() -> None:
    odd = over(make_pod(), NOW)
    terminated = odd["status"]["containerStatuses"][0]["state"]["terminated"]
    terminated |= {"startedAt": "0001-01-01T00:00:00Z", "finishedAt": "1970-01-01T00:00:00Z"}
    assert record_of(odd).stop_time == NOW


def test_site_user_and_group_come_from_labels_annotations_namespace_and_owner() -> None:
    pod = over(make_pod(**{"auditor/user": "alice", "vo": "atlas"}), NOW)
    pod["metadata"]["annotations"]["example.org/site"] = "site-b"
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ReplicaSet", "name": "other", "uid": "1"},
        {"apiVersion": "batch/v1", "kind": "Job", "name": "reco-7", "uid": "2", "controller": True},
    ]
    record = record_of(
        pod,
        sites=[{"name": "SITE-A", "only_if": {"key": "node", "matches": "^a"}}, {"key": "annotation.example.org/site"}],
        meta=[
            {"name": "user_id", "key": "label.auditor/user", "key_type": "String"},
            {"name": "group_id", "template": "{namespace}/{label.vo}"},
            {"name": "job", "template": "{owner_kind}:{owner_name}"},
            {"name": "queue", "template": "{label.queue}", "default_value": "none"},
        ],
    )
    meta = record.meta or {}
    assert [meta[name] for name in ("site_id", "user_id", "group_id", "job", "queue")] == [
        ("site-b",),
        ("alice",),
        ("grid/atlas",),
        ("Job:reco-7",),
        ("none",),
    ]


def test_ids_of_the_longest_names_fit() -> None:
    pod = over(make_pod("n" * 253, "s" * 63), NOW)
    pod["metadata"]["uid"] = "eb9bece8-e4d3-44c5-acd8-28830bec9b18"
    record = record_of(pod)
    assert len(record.record_id) == 256
    assert record.record_id.endswith("nn-eb9bece8-e4d3-44c5-acd8-28830bec9b18")


def test_what_cannot_be_converted_can_be_when_the_configuration_is_mended() -> None:
    rule = {"name": "user_id", "key": "label.user", "key_type": "String", "optional": False}
    strict, lax = (KubernetesConfig.model_validate({"meta": [{**rule, **more}]}) for more in ({}, {"optional": True}))
    pod = restore_pod(over(make_pod(), NOW))
    finished = determine_end(strict, pod, History(), NOW)
    assert isinstance(finished, PodToConvert)
    bad = convert_pod(strict, finished)
    assert isinstance(bad, Quarantined)
    assert (bad.source_id, "no value" in bad.reason) == ("grid/job1/uid-grid-job1", True)
    with pytest.raises(InvalidRecord, match="meta user_id"):
        convert(strict, bad.raw)
    produced = convert(lax, bad.raw)
    assert isinstance(produced, Produced)
    assert (produced.record.record_id, produced.record.stop_time) == ("-grid-job1-uid-grid-job1", NOW)
    only_failed = KubernetesConfig.model_validate({"job_filter": {"status": ["Failed"]}})
    assert convert(only_failed, bad.raw) is None


def test_a_quantity_that_is_none_costs_the_components_that_are_made_of_it_and_not_the_record() -> None:
    pod = over(with_containers(make_pod(), container("a", limits={"cpu": "lots"})), NOW)
    finished = determine_end(KubernetesConfig(), restore_pod(pod), History(), NOW)
    assert isinstance(finished, PodToConvert)
    made = convert_pod(KubernetesConfig(), finished)
    assert isinstance(made, Converted)
    assert [each.name for each in made.record.components] == ["WaitTime"]
    assert "a: limits.cpu: 'lots' is not a quantity" in made.left_out[0].reason
    needed = KubernetesConfig.model_validate({"components": [{"name": "Cores", "key": "limits.cpu"}]})
    assert isinstance(convert_pod(needed, finished), Quarantined)


def test_zero_from_prometheus_means_that_it_has_not_seen_the_pod() -> None:
    finished = determine_end(KubernetesConfig(), restore_pod(over(make_pod(), NOW)), History(), NOW)
    assert isinstance(finished, PodToConvert)
    seen = {"prometheus.cpu": "0.400000", "prometheus.memory": "4096.000000"}
    for metrics, expected in ((seen, {"TotalCPU": 0, "MaxRSS": 4_096}), (dict.fromkeys(seen, "0.000000"), {})):
        made = convert_pod(KubernetesConfig(), msgspec.structs.replace(finished, metrics=metrics))
        assert isinstance(made, Converted)
        assert {
            name: amount for name, amount in amounts(made.record).items() if name in {"TotalCPU", "MaxRSS"}
        } == expected
