"""The resources that pods hold, and for how long: totals through the list and the watch, against a plain ledger."""

import logging
import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from auditord_builtin.kubernetes import amounts as sizes_of_pods
from auditord_builtin.kubernetes.collecting import KUBERNETES
from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_hookspecs import LeftOut, Record
from tests.builtin.kubernetes.conftest import Site
from tests.builtin.kubernetes.pod_maker import (
    NOW,
    START,
    Pod,
    at,
    container,
    make_pod,
    over,
    ran,
    resized,
    running,
    scheduled,
)

pytestmark = pytest.mark.anyio
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
HOUR = 3600


def amounts(record: Record) -> dict[str, int]:
    return {component.name: component.amount for component in record.components}


def pod_of(name: str = "job1", **requests: str) -> Pod:
    """A pod that was scheduled at START, with one container that requests these amounts."""
    pod = make_pod(name)
    pod["spec"]["containers"] = [container(limits=dict(requests), requests=dict(requests))]
    return scheduled(pod, START)


def end(pod: Pod, stop: datetime) -> Pod:
    """The pod as it is now, with all that its status says, when its container has ended."""
    ended = over(pod, stop, datetime.fromisoformat(pod["status"]["startTime"]))
    for before, after in zip(pod["status"]["containerStatuses"], ended["status"]["containerStatuses"], strict=True):
        after |= {name: before[name] for name in ("resources", "allocatedResources") if name in before}
    return ended


def left_out(site: Site) -> list[LeftOut]:
    return [each for batch in site.context.kept for each in batch.left_out]


@pytest.mark.parametrize(
    ("pods", "cpu", "core_hours"),
    [(10, "400m", 4), (5, "500m", Fraction(5, 2)), (1, "8", 8), (3, "1m", Fraction(3, 1000))],
)
async def test_the_core_hours_of_pods_that_hold_cores_for_an_hour(
    site: Site, pods: int, cpu: str, core_hours: Fraction
) -> None:
    for number in range(pods):
        site.server.put(over(pod_of(f"job{number}", cpu=cpu, memory="512Mi"), NOW))
    records = await site.collect()
    held = sum(amounts(record)["CoreSeconds"] for record in records)
    assert abs(Fraction(held, HOUR) - core_hours) <= Fraction(pods, 2 * HOUR)  # half a core-second per record
    assert {amounts(record)["MemorySeconds"] for record in records} == {512 * HOUR}


async def test_a_record_has_one_form_of_each_amount(site: Site) -> None:
    site.server.put(over(pod_of(cpu="2", memory="1Gi", **{"nvidia.com/gpu": "1"}), NOW))
    [record] = await site.collect()
    assert amounts(record) == {
        "CoreSeconds": 2 * HOUR,
        "MemorySeconds": 1024 * HOUR,
        "GPUSeconds": HOUR,
        "WaitTime": 0,
    }


async def test_a_pod_that_is_resized_counts_with_each_of_its_sizes(site: Site) -> None:
    pod = running(pod_of(cpu="8", memory="8Gi"))
    site.server.put(pod)
    assert await site.collect() == []
    pod = resized(pod, START + 50 * MINUTE, cpu="1", memory="2Gi")
    site.server.put(pod)
    assert await site.collect() == []
    site.server.put(end(pod, NOW))
    [record] = await site.collect()
    assert amounts(record)["CoreSeconds"] == 24_600
    assert amounts(record)["MemorySeconds"] == 8192 * 3000 + 2048 * 600
    assert (record.start_time, record.stop_time) == (START, NOW)
    assert site.context.pending_values == {}


async def test_columns_of_limits_follow_a_resize_while_containers_run(site: Site) -> None:
    pod = running(pod_of(cpu="8", memory="8Gi"))
    pod["status"]["containerStatuses"] = [ran("main", START, START + 10 * MINUTE), *pod["status"]["containerStatuses"]][
        1:
    ]
    site.server.put(pod)
    await site.collect()
    pod = resized(pod, START + 50 * MINUTE, cpu="1")
    site.server.put(pod)
    site.server.put(end(pod, NOW))
    [record] = await site.collect(components="auditor")
    assert amounts(record)["naive_cpu_time"] == 8 * 2995 + 600


async def test_an_upsize_just_before_the_end_counts_from_then(site: Site) -> None:
    await site.collect()
    pod = running(pod_of(cpu="1", memory="1Gi"))
    site.server.put(pod)
    pod = resized(pod, NOW - MINUTE, cpu="100")
    site.server.put(pod)
    site.server.put(end(pod, NOW))
    [record] = await site.collect()
    assert amounts(record)["CoreSeconds"] == 59 * 60 + 100 * 60


async def test_without_times_of_writes_a_resize_counts_from_the_time_at_which_it_was_read(site: Site) -> None:
    site.context.moment = START
    pod = running(pod_of(cpu="8"))
    site.server.put(pod)
    await site.collect()
    site.context.moment = START + 50 * MINUTE
    pod = resized(pod, START, cpu="1")
    del pod["metadata"]["managedFields"]
    site.server.put(pod)
    await site.collect()
    site.context.moment = NOW
    site.server.put(end(pod, NOW))
    [record] = await site.collect()
    assert amounts(record)["CoreSeconds"] == 24_600


async def test_a_resize_that_the_node_has_not_accepted_does_not_count(site: Site) -> None:
    await site.collect()
    pod = running(pod_of(cpu="2"))
    site.server.put(pod)
    pod = resized(pod, START + MINUTE, wanted_only=True, cpu="64")
    site.server.put(pod)
    pod["status"]["containerStatuses"][0].pop("resources")  # a status that was lost, and the next one
    pod["status"]["containerStatuses"][0].pop("allocatedResources")
    site.server.put(pod)
    site.server.put(end(pod, NOW))
    [record] = await site.collect()
    assert amounts(record)["CoreSeconds"] == 2 * HOUR


async def test_a_shrink_counts_once_it_is_applied(site: Site) -> None:
    await site.collect()
    pod = running(pod_of(cpu="4"))
    site.server.put(pod)
    pod = resized(pod, START + 10 * MINUTE, cpu="1")
    pod["status"]["containerStatuses"][0]["resources"] = {"requests": {"cpu": "4"}}
    site.server.put(pod)
    pod = resized(pod, START + 30 * MINUTE, cpu="1")
    site.server.put(pod)
    site.server.put(end(pod, NOW))
    [record] = await site.collect()
    assert amounts(record)["CoreSeconds"] == 4 * 1800 + 1800


async def test_a_pod_that_is_resized_as_a_whole(site: Site) -> None:
    pod = running(pod_of(cpu="1", memory="1Gi"))
    pod["spec"]["resources"] = {"requests": {"cpu": "8", "memory": "8Gi"}}
    pod["spec"]["overhead"] = {"cpu": "250m"}
    site.server.put(pod)
    await site.collect()
    pod = resized(pod, START + 50 * MINUTE, cpu="1")
    pod["spec"]["resources"] = {"requests": {"cpu": "1", "memory": "2Gi"}}
    pod["status"] |= {"resources": pod["spec"]["resources"], "allocatedResources": pod["spec"]["resources"]["requests"]}
    site.server.put(pod)
    site.server.put(end(pod, NOW))
    [record] = await site.collect()
    assert amounts(record)["CoreSeconds"] == 24_600 + HOUR // 4
    assert amounts(record)["MemorySeconds"] == 8192 * 3000 + 2048 * 600


async def test_a_resize_while_the_daemon_was_down_counts_from_the_last_request_and_is_remarked(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.context.moment = START + 10 * MINUTE
    pod = running(pod_of(cpu="8"))
    site.server.put(pod)
    await site.collect()
    pod = resized(pod, START + 50 * MINUTE, cpu="1")
    pod["metadata"]["managedFields"][1]["time"] = at(START + 55 * MINUTE)  # the kubelet wrote something else, later
    site.server.put(end(pod, NOW))
    site.server.compact()
    site.context.moment = NOW + MINUTE
    with caplog.at_level(logging.WARNING):
        [record] = await site.collect()
    assert amounts(record)["CoreSeconds"] == 24_600
    assert "1 pods were resized, or shared claims, while not watched, such as grid/job1/uid-grid-job1" in caplog.text


async def test_a_watch_that_was_not_interrupted_knows_all_sizes_however_long_the_daemon_was_down(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.context.moment = START
    pod = running(pod_of(cpu="8"))
    site.server.put(pod)
    await site.collect()
    for minute, cpu in ((10, "2"), (20, "4"), (50, "1")):
        pod = resized(pod, START + minute * MINUTE, cpu=cpu)
        site.server.put(pod)
    site.server.put(end(pod, NOW))
    site.context.moment = NOW + 60 * MINUTE
    with caplog.at_level(logging.WARNING):
        [record] = await site.collect()
    assert amounts(record)["CoreSeconds"] == 60 * (8 * 10 + 2 * 10 + 4 * 30 + 10)
    assert "resized" not in caplog.text


async def test_a_pod_that_was_resized_before_it_was_first_seen_is_remarked(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    pod = resized(running(pod_of(cpu="8")), START + 50 * MINUTE, cpu="1")
    site.server.put(end(pod, NOW))
    with caplog.at_level(logging.WARNING):
        [record] = await site.collect()
    assert amounts(record)["CoreSeconds"] == HOUR
    assert "their totals are estimates" in caplog.text


async def test_more_sizes_than_are_kept_have_the_same_total(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.collect()
    monkeypatch.setattr(sizes_of_pods, "_MOST_SIZES", 5)
    pod, expected = running(pod_of(cpu="1")), 0
    site.server.put(pod)
    for minute in range(1, 60):
        expected += 60 * int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        pod = resized(pod, START + minute * MINUTE, cpu=str(minute % 7 + 1))
        site.server.put(pod)
    await site.collect()
    [saved] = site.context.pending_values.values()
    assert len(saved["history"]["sizes"]) == 5
    site.server.put(end(pod, NOW))
    [record] = await site.collect()
    assert amounts(record)["CoreSeconds"] == expected + 60 * (59 % 7 + 1)


def waiting_for_an_image() -> Pod:
    pod = running(pod_of(cpu="4", memory="2Gi", **{"nvidia.com/gpu": "1"}), START + MINUTE)
    waits = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}, "restartCount": 0}
    pod["status"] |= {"phase": "Pending", "containerStatuses": [waits]}
    return pod


@pytest.mark.parametrize(("held_while", "seconds"), [("reserved", HOUR), ("running", 0)])
async def test_cpus_memory_and_gpus_of_a_pod_that_waits_for_its_image_count_by_one_rule(
    site: Site, held_while: str, seconds: int
) -> None:
    pod = waiting_for_an_image()
    site.server.put(pod)
    await site.collect(held_while=held_while)
    site.server.delete(pod)
    [record] = await site.collect(held_while=held_while)
    found = amounts(record)
    held = {name: found[name] for name in ("CoreSeconds", "MemorySeconds", "GPUSeconds")}
    assert held == {"CoreSeconds": 4 * seconds, "MemorySeconds": 2048 * seconds, "GPUSeconds": seconds}
    assert record.start_time == START + MINUTE  # AUDITOR's, and the run's identity


async def test_while_containers_run_only_their_runs_count(site: Site) -> None:
    resources = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}
    pod = pod_of(**resources)
    pod["spec"]["containers"] = [container("a", requests=resources), container("b", requests={"cpu": "500m"})]
    pod["spec"]["overhead"] = {"cpu": "100m", "memory": "64Mi"}
    ended = over(pod, NOW)
    runs = (START + 10 * MINUTE, START + 20 * MINUTE), (START + 15 * MINUTE, START + 40 * MINUTE)
    ended["status"]["containerStatuses"] = [ran("a", *runs[0]), ran("b", *runs[1])]
    site.server.put(ended)
    [record] = await site.collect(held_while="running")
    found = amounts(record)
    assert found["CoreSeconds"] == 2 * 600 + 1500 // 2 + 1800 // 10
    assert found["MemorySeconds"] == 1024 * 600 + 64 * 1800
    assert found["GPUSeconds"] == 600


async def test_the_overhead_of_a_pod_counts_for_memory_and_cpu(site: Site) -> None:
    pod = pod_of(cpu="500m", memory="100Mi")
    pod["spec"]["overhead"] = {"cpu": "250m", "memory": "60Mi"}
    ended = over(pod, START + 101 * SECOND)
    ended["status"]["containerStatuses"] = [ran("main", START, START + 101 * SECOND)]
    site.server.put(ended)
    rule = {"name": "requested_cpu_time", "key": "requests.cpu.time", "key_type": "Time"}
    [record] = await site.collect(components=[rule, {"name": "M", "key": "memory_seconds"}])
    assert amounts(record) == {"requested_cpu_time": 75, "M": 160 * 101}


async def test_a_pod_that_requests_nothing_has_no_total(site: Site) -> None:
    pod = pod_of()
    site.server.put(over(pod, NOW))
    [record] = await site.collect()
    assert amounts(record) == {"WaitTime": 0}


async def test_a_status_that_names_no_gpu_does_not_take_it_away(site: Site) -> None:
    await site.collect()
    """Servers before 1.33 list only cpu and memory there."""
    pod = running(pod_of(cpu="2", **{"nvidia.com/gpu": "1"}))
    pod["status"]["containerStatuses"][0]["resources"] = {"requests": {"cpu": "2"}}
    site.server.put(end(pod, NOW))
    [record] = await site.collect()
    assert amounts(record)["GPUSeconds"] == HOUR


@pytest.mark.parametrize(
    ("resources", "rules", "gpu_seconds"),
    [
        ({"nvidia.com/gpu.shared": "1"}, [{"resource": r"^nvidia\.com/gpu\.shared$", "factor": "0.25"}], HOUR // 4),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "25"}, [{"resource": "gpucores", "factor": "0.01"}], HOUR // 4),
        ({"nvidia.com/mig-2g.10gb": "3"}, [{"resource": "mig-2g", "factor": "0.285714285714"}], 3086),
        ({"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "2"}, None, 2 * HOUR),
        ({"deviceclass.resource.kubernetes.io/nic.example.org": "2"}, None, None),
    ],
)
async def test_fractions_of_gpus_count_by_rules(
    site: Site, resources: Mapping[str, str], rules: Any, gpu_seconds: int | None
) -> None:
    site.server.put(over(pod_of(cpu="1", **resources), NOW))
    [record] = await site.collect(**({} if rules is None else {"gpus": rules}))
    assert amounts(record).get("GPUSeconds") == gpu_seconds


def request(name: str, device_class: str, count: int = 1, **more: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count, **more}
    return {"name": name, "exactly": exactly}


def result(name: str, driver: str = "gpu.nvidia.com", **more: Any) -> dict[str, Any]:
    return {"request": name, "driver": driver, "pool": "wn01", "device": "gpu-0", **more}


def claim(requests: list[dict[str, Any]], results: list[dict[str, Any]]) -> dict[str, Any]:
    return {"spec": {"devices": {"requests": requests}}, "status": {"allocation": {"devices": {"results": results}}}}


def template_of(requests: list[dict[str, Any]]) -> dict[str, Any]:
    return {"spec": {"metadata": {}, "spec": {"devices": {"requests": requests}}}}


def using(pod: Pod, template: str | None = None, name: str = "gpus") -> Pod:
    """The pod with a claim: one of its own from a template, or one that others may use, too."""
    pod["spec"]["resourceClaims"] = [
        {"name": "g", "resourceClaimName": name}
        if template is None
        else {"name": "g", "resourceClaimTemplateName": template}
    ]
    if template is not None:
        pod["status"]["resourceClaimStatuses"] = [{"name": "g", "resourceClaimName": name}]
    return pod


async def test_devices_that_were_allocated_to_a_claim_of_a_pod_count_although_the_claim_ends_with_it(
    site: Site,
) -> None:
    requests = [request("two", "gpu.nvidia.com", 2), request("watch", "gpu.nvidia.com", adminAccess=True)]
    results = [result("two"), result("two"), result("watch", adminAccess=True), result("nic", "nic.example.org")]
    site.server.claims["grid", "resourceclaims", "job1-g-x7k2p"] = claim(requests, results)
    pod = using(running(pod_of(cpu="1")), "template", "job1-g-x7k2p")
    site.server.put(pod)
    await site.collect()
    site.server.claims.clear()
    site.server.claims["grid", "resourceclaimtemplates", "template"] = template_of(requests)
    pod = end(pod, NOW)
    del pod["status"]["resourceClaimStatuses"]  # lost; the claim counts once all the same
    site.server.put(pod)
    [record] = await site.collect()
    assert amounts(record)["GPUSeconds"] == 2 * HOUR


async def test_a_claim_that_others_may_have_used_before_it_was_seen_is_remarked(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.server.claims["grid", "resourceclaims", "gpus"] = claim([request("g", "gpu.nvidia.com")], [result("g")])
    site.server.put(using(over(pod_of(cpu="1"), NOW)))
    with caplog.at_level(logging.WARNING):
        [record] = await site.collect()
    assert amounts(record)["GPUSeconds"] == HOUR
    assert "their totals are estimates" in caplog.text


async def test_devices_count_by_driver_and_by_class(site: Site) -> None:
    requests = [{"name": "any", "firstAvailable": [{"name": "big", "deviceClassName": "big.example.org"}]}]
    site.server.claims["grid", "resourceclaims", "gpus"] = claim(requests, [result("any/big", "gpu.example.org")])
    for number, rule in enumerate(
        ({"device_class": r"^big\.", "factor": 2}, {"driver": r"^gpu\.example", "factor": 3})
    ):
        site.server.put(using(over(pod_of(f"job{number}", cpu="1"), NOW)))
        [record] = await site.collect(gpus=[rule])
        assert amounts(record)["GPUSeconds"] == (number + 2) * HOUR


async def test_a_claim_that_was_gone_before_it_was_read_counts_as_its_template_says(site: Site) -> None:
    template = template_of([request("gpu", "gpu.nvidia.com", 4)])
    site.server.claims["grid", "resourceclaimtemplates", "four"] = template
    site.server.put(using(over(pod_of(cpu="1"), NOW), "four"))
    [record] = await site.collect()
    assert amounts(record)["GPUSeconds"] == 4 * HOUR


@pytest.mark.parametrize(
    ("status", "reason"), [(200, "was gone before it was read"), (403, "needs the verb get on resour")]
)
async def test_devices_that_are_unknown_are_no_zero(site: Site, status: int, reason: str) -> None:
    site.server.faults.no_claims = status
    site.server.put(using(over(pod_of(cpu="1"), NOW)))
    [record] = await site.collect()
    assert amounts(record) == {"CoreSeconds": HOUR, "WaitTime": 0}
    [missing] = left_out(site)
    assert (missing.name, missing.rounded, reason in missing.reason) == ("GPUSeconds", False, True)


async def test_an_api_server_that_fails_to_answer_about_a_claim_is_asked_again(site: Site) -> None:
    await site.collect()
    site.server.claims["grid", "resourceclaims", "gpus"] = claim([request("g", "gpu.nvidia.com")], [result("g")])
    site.server.faults.no_claims = 503
    site.server.put(using(over(pod_of(cpu="1"), NOW)))
    with pytest.raises(Exception, match="503"):
        await site.collect()
    site.server.faults.no_claims = 200
    [record] = await site.collect()
    assert amounts(record)["GPUSeconds"] == HOUR


@pytest.mark.parametrize("listed", [True, False])
async def test_a_claim_that_pods_share_is_divided_equally_while_they_use_it(site: Site, listed: bool) -> None:  # noqa: FBT001 a parameter
    site.server.claims["grid", "resourceclaims", "gpus"] = claim([request("g", "gpu.nvidia.com")], [result("g")])
    first = using(running(pod_of("first", cpu="1")))
    second = using(running(scheduled(pod_of("second", cpu="1"), START + 20 * MINUTE), START + 20 * MINUTE))
    for pod in (second, first) if listed else (first, second):
        site.server.put(pod)
        if not listed:
            await site.collect()
    await site.collect()
    site.server.put(using(end(first, START + 40 * MINUTE)))
    site.server.put(using(end(second, NOW)))
    found = {(record.meta or {})["podname"][0]: amounts(record)["GPUSeconds"] for record in await site.collect()}
    assert found == {"first": 60 * (20 + 10), "second": 60 * (10 + 20)}
    assert sum(found.values()) == HOUR


async def test_rules_that_round_cores_away_are_counted_and_remarked(site: Site) -> None:
    rules = [{"name": "Cores", "key": "requests.cpu"}, {"name": "Milli", "key": "requests.cpu", "factor": 1000}]
    site.server.put(over(pod_of("half", cpu="400m"), NOW))
    site.server.put(over(pod_of("whole", cpu="3"), NOW))
    found = [amounts(record) for record in await site.collect(components=rules)]
    assert found == [{"Cores": 0, "Milli": 400}, {"Cores": 3, "Milli": 3000}]
    [rounded] = left_out(site)
    assert (rounded.name, rounded.rounded, rounded.record_id) == ("Cores", True, "-grid-half-uid-grid-half")
    assert "0.4 was rounded" in rounded.reason


def remarks(**options: Any) -> list[str]:
    assert KUBERNETES.remarks is not None
    config = KubernetesConfig.model_validate({"sites": [{"name": "A"}], **options})
    return list(KUBERNETES.remarks(config))


async def test_config_check_tells_of_rules_that_round_fractions_away() -> None:
    assert remarks() == []
    [text] = remarks(components=[{"name": "Cores", "key": "requests.cpu"}, {"name": "GPU", "key": "gpu"}])
    assert text.startswith("component Cores: requests.cpu can have a fraction")
    assert "{name: CoreSeconds, key: core_seconds}" in text
    assert remarks(components=[{"name": "Milli", "key": "requests.cpu", "factor": 1000}]) == []
    quarter = [{"resource": "gpu.shared", "factor": 0.25}]
    assert len(remarks(components=[{"name": "GPU", "key": "gpu"}], gpus=quarter)) == 1
    assert remarks(components=[{"name": "Quarters", "key": "gpu", "factor": 4}], gpus=quarter) == []


@pytest.mark.parametrize("seed", range(3))
async def test_random_pods_hold_what_a_ledger_says(site: Site, seed: int) -> None:
    """Pods are scheduled, resized and ended. Each run has only the saved state, and some are killed."""
    chance, alive = random.Random(seed), dict[str, Pod]()  # noqa: S311 a test's dice
    ledger = dict[str, list[tuple[datetime, Fraction]]]()
    expected, found = dict[str, Fraction](), dict[str, int]()
    site.context.moment = START
    await site.collect()
    for minute in range(60):
        moment = START + minute * MINUTE
        site.context.moment = moment + 30 * SECOND
        name = f"job{minute}"
        milli = chance.randint(1, 9_000)
        pod = scheduled(pod_of(name, cpu=f"{milli}m"), moment - 10 * SECOND)
        alive[name] = site.server.put(running(pod, moment))
        ledger[name] = [(moment - 10 * SECOND, Fraction(milli, 1000))]
        for other in chance.sample(sorted(alive), min(len(alive), 3)):
            milli, later = chance.randint(1, 9_000), moment + chance.randint(1, 29) * SECOND
            if later > ledger[other][-1][0]:
                alive[other] = site.server.put(resized(alive[other], later, cpu=f"{milli}m"))
                ledger[other].append((later, Fraction(milli, 1000)))
        if chance.random() < 0.5:
            gone = chance.choice(sorted(alive))
            stop, ended = moment + 30 * SECOND, alive.pop(gone)
            site.server.put(end(ended, stop))
            times = [*(since for since, _ in ledger[gone]), stop]
            lasted = [(after - before) // SECOND for before, after in pairwise(times)]
            cores = [amount for _, amount in ledger[gone]]
            expected[gone] = sum((a * b for a, b in zip(cores, lasted, strict=True)), Fraction(0))
        if chance.random() < 0.4:
            records = await site.collect_and_die(chance.randint(0, 3), page_size=4)
            found |= {(each.meta or {})["podname"][0]: amounts(each)["CoreSeconds"] for each in records}
    found |= {(each.meta or {})["podname"][0]: amounts(each)["CoreSeconds"] for each in await site.collect()}
    assert found == {name: int(total + Fraction(1, 2)) for name, total in expected.items()}
