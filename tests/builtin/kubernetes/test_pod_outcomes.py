"""The label ``outcome`` of pods: a page and a watch of a real API server, and statuses as Kubernetes writes them."""

import json
from datetime import timedelta
from typing import Any

import pytest

from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.conversion import History, PodToConvert, convert_pod, determine_end
from auditord_builtin.kubernetes.pods import decode_pod, restore_pod, runs_of
from auditord_hookspecs.outcomes import Converted
from auditord_hookspecs.vocabulary import JobOutcome
from tests.builtin.kubernetes.pod_maker import NOW, Pod, at, make_pod, over, ran, running
from tests.builtin.kubernetes.test_recorded import RECORDED

STOP = NOW - timedelta(minutes=10)


def outcome(raw: Any, *, gone: bool = False, **options: Any) -> str | None:
    config, pod = KubernetesConfig.model_validate({"components": "auditor", **options}), restore_pod(raw)
    assert pod.terminal or gone
    ended = determine_end(config, pod, History(runs_of(pod, {})), NOW)
    assert isinstance(ended, PodToConvert), ended
    converted = convert_pod(config, ended)
    assert isinstance(converted, Converted), converted
    return (converted.record.meta or {}).get("outcome", (None,))[0]


def failed(reason: str | None = None, message: str | None = None, *, container: str = "Error", code: int = 1) -> Pod:
    pod = over(make_pod(), STOP, phase="Failed")
    pod["status"] |= {name: text for name, text in (("reason", reason), ("message", message)) if text is not None}
    for status in pod["status"]["containerStatuses"]:
        status["state"]["terminated"] |= {"reason": container, "exitCode": code}
    return pod


def disrupted(pod: Pod, reason: str, status: str = "True") -> Pod:
    pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": status, "reason": reason}]
    return pod


def deleted(pod: Pod, asked_before_stop: int, grace: int = 30) -> Pod:
    moment = STOP - timedelta(seconds=asked_before_stop) + timedelta(seconds=grace)
    pod["metadata"] |= {"deletionTimestamp": at(moment), "deletionGracePeriodSeconds": grace}
    return pod


@pytest.mark.parametrize(
    ("pod", "word"),
    [
        (over(make_pod(), STOP), "completed"),
        (deleted(over(make_pod(), STOP), 5), "completed"),
        (failed(), "failed"),
        (failed(container="OOMKilled", code=137), "out_of_memory"),
        (failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"), "timeout"),
        (failed("Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi"), "preempted"),
        (failed("Evicted"), "preempted"),
        (failed("Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."), "failed"),
        (failed("Preempting", "Preempted in order to admit critical pod"), "preempted"),
        (failed("Terminated", "Pod was terminated in response to imminent node shutdown."), "node_fail"),
        (failed("NodeLost"), "node_fail"),
        (failed("UnexpectedAdmissionError"), "failed"),
        (disrupted(failed(code=143), "PreemptionByScheduler"), "preempted"),
        (disrupted(failed(code=143), "EvictionByEvictionAPI"), "preempted"),
        (disrupted(failed(), "DeletionByTaintManager"), "node_fail"),
        (disrupted(failed(), "DeletionByPodGC"), "node_fail"),
        (disrupted(failed("Evicted", "The node was low on resource: memory."), "TerminationByKubelet"), "preempted"),
        (disrupted(failed(), "PreemptionByScheduler", status="False"), "failed"),  # it did not happen
        (deleted(failed(code=137), 30), "cancelled"),
        (deleted(failed(), -3600), "failed"),  # deleted an hour after its end
    ],
)
def test_a_pod_that_is_over_has_one_of_the_words(pod: Pod, word: str) -> None:
    assert outcome(pod) == word
    assert word in set(JobOutcome)


@pytest.mark.parametrize(
    ("pod", "word"),
    [
        (running(make_pod()), "cancelled"),
        (disrupted(running(make_pod()), "PreemptionByScheduler"), "preempted"),
        (disrupted(running(make_pod()), "DeletionByPodGC"), "node_fail"),
    ],
)
def test_a_pod_that_was_deleted_before_its_end_has_one_of_the_words(pod: Pod, word: str) -> None:
    assert outcome(pod, gone=True) == word


def test_a_sidecar_out_of_memory_counts_for_the_pod_only_if_it_failed() -> None:
    pod = over(make_pod(), STOP)
    sidecar = ran("sidecar", STOP - timedelta(minutes=5), STOP)
    sidecar["state"]["terminated"] |= {"reason": "OOMKilled", "exitCode": 137}
    pod["status"]["containerStatuses"].append(sidecar)
    assert outcome(pod) == "completed"
    assert outcome({**pod, "status": {**pod["status"], "phase": "Failed"}}) == "out_of_memory"


def test_a_rule_of_the_site_wins() -> None:
    assert outcome(failed("Evicted"), meta=[{"name": "outcome", "key": "reason", "key_type": "String"}]) == "Evicted"


def test_pods_of_a_real_server_have_these_words() -> None:
    events = [json.loads(line) for line in (RECORDED / "watch.jsonl").read_text().splitlines()]
    pods = [event["object"] for event in events if event["type"] != "BOOKMARK" and "spec" in event["object"]]
    found = [(pod["status"]["phase"], outcome(pod)) for pod in pods if decode_pod(json.dumps(pod).encode()).terminal]
    assert found == [("Failed", "failed"), ("Succeeded", "completed"), ("Succeeded", "completed")]
