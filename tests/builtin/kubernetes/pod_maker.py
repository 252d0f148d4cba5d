"""Pods as a real API server writes them, with the statuses that a kubelet would have written."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

Pod = dict[str, Any]
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
START = NOW - timedelta(hours=1)


def at(moment: datetime) -> str:
    """An instant as Kubernetes writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def container(name: str = "main", **resources: dict[str, str]) -> dict[str, Any]:
    """A container of a spec."""
    return {"name": name, "image": "busybox", "resources": resources}


def ran(name: str, start: datetime, stop: datetime | None, **more: Any) -> dict[str, Any]:
    """A container's status: it ran from start to stop, or still runs."""
    if stop is None:
        state: dict[str, Any] = {"running": {"startedAt": at(start)}}
    else:
        state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": at(start), "finishedAt": at(stop)}}
    return {"name": name, "state": state, "lastState": {}, "restartCount": 0, "ready": False, "image": "", **more}


def make_pod(name: str = "job1", namespace: str = "grid", **labels: str) -> Pod:
    """A pod that waits for a node: one container with a limit of two cores and 1 GiB."""
    amounts = {"cpu": "2", "memory": "1Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "resourceVersion": "1",
            "creationTimestamp": at(START),
            "labels": dict(labels),
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        },
        "spec": {"containers": [container(limits=amounts, requests=amounts)], "restartPolicy": "Never"},
        "status": {"phase": "Pending", "qosClass": "Guaranteed"},
    }


def running(pod: Pod, start: datetime = START) -> Pod:
    """The pod while its containers run."""
    changed = copy.deepcopy(pod)
    statuses = [ran(each["name"], start + timedelta(seconds=5), None) for each in pod["spec"]["containers"]]
    changed["spec"]["nodeName"] = "wn01"
    changed["status"] |= {"phase": "Running", "startTime": at(start), "containerStatuses": statuses}
    return changed


def over(pod: Pod, stop: datetime, start: datetime = START, phase: str = "Succeeded") -> Pod:
    """The pod after its containers have ended."""
    changed = running(pod, start)
    names = [each["name"] for each in pod["spec"]["containers"]]
    statuses = [ran(name, start + timedelta(seconds=5), stop) for name in names]
    changed["status"] |= {"phase": phase, "containerStatuses": statuses}
    return changed


def scheduled(pod: Pod, moment: datetime) -> Pod:
    """The pod after the scheduler has chosen its node."""
    changed = copy.deepcopy(pod)
    changed["metadata"]["creationTimestamp"] = at(moment)
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(moment)}
    changed["status"]["conditions"] = [condition]
    return changed


def resized(pod: Pod, moment: datetime, *, wanted_only: bool = False, **amounts: str) -> Pod:
    """The running pod after it was resized in place, or only asked to be."""
    changed = copy.deepcopy(pod)
    spec, status = changed["spec"]["containers"][0], changed["status"]["containerStatuses"][0]
    before = status.get("resources") or spec["resources"]
    after = {bound: {**before[bound], **amounts} for bound in before}
    spec["resources"] = after
    status["resources"] = before if wanted_only else after
    status["allocatedResources"] = status["resources"]["requests"]
    writers = [{"manager": "vpa", "operation": "Update", "subresource": "resize", "time": at(moment)}]
    if not wanted_only:
        writers.append({"manager": "kubelet", "operation": "Update", "subresource": "status", "time": at(moment)})
    changed["metadata"]["managedFields"] = writers
    return changed
