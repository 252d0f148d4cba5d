"""The columns that the rules of a configuration can look at."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal

from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.pods import Owner, Pod, texts
from auditord_builtin.kubernetes.resources import SIDES, Amounts, core_seconds, granted
from auditord_builtin.kubernetes.runs import Runs
from auditord_hookspecs.mapping import Row

_NO_OWNER = Owner()


def row_of(config: KubernetesConfig, pod: Pod, runs: Runs, start: datetime, stop: datetime | None) -> Row:
    """Everything that is known of a pod, as texts: names, labels and amounts; times only if it has ended.

    Raises:
        InvalidRecord: a quantity cannot be read.
    """
    return {
        **_names(pod),
        **{f"label.{name}": text for name, text in texts(pod.metadata.labels).items()},
        **{f"annotation.{name}": text for name, text in texts(pod.metadata.annotations).items()},
        **{name: f"{amount:f}" for name, amount in _amounts(config, pod)},
        **{name: f"{amount:f}" for name, amount in _times(pod, runs, start, stop)},
    }


def _names(pod: Pod) -> Mapping[str, str]:
    owners = pod.metadata.owner_references or ()
    owner = next((each for each in owners if each.controller), owners[0] if owners else _NO_OWNER)
    found = {
        "podname": pod.metadata.name,
        "namespace": pod.metadata.namespace,
        "uid": pod.metadata.uid,
        "reason": pod.status.reason,
        "node": pod.spec.node_name,
        "owner_kind": owner.kind,
        "owner_name": owner.name,
        "priority_class": pod.spec.priority_class_name,
        "service_account": pod.spec.service_account_name,
        "scheduler": pod.spec.scheduler_name,
        "qos_class": pod.status.qos_class,
        "restarts": str(sum(status.restart_count for status in pod.statuses)),
    }
    return {name: text for name, text in found.items() if text}


def _amounts(config: KubernetesConfig, pod: Pod) -> Iterable[tuple[str, Decimal]]:
    both = {side: granted(pod, side) for side in SIDES}
    for side, amounts in both.items():
        yield from ((f"{side}.{name}", amount) for name, amount in amounts.items())
    gpus = _gpus(config, both["limits"], both["requests"])
    if gpus:
        yield "gpu", gpus


def _gpus(config: KubernetesConfig, limits: Amounts, requests: Amounts) -> Decimal:
    """Limits and requests of such resources are equal; the cluster fills in whichever is not there."""
    names = {name for name in (*limits, *requests) if config.gpu_resources.search(name)}
    return sum((max(limits.get(name, Decimal(0)), requests.get(name, Decimal(0))) for name in names), Decimal(0))


def _times(pod: Pod, runs: Runs, start: datetime, stop: datetime | None) -> Iterable[tuple[str, Decimal]]:
    if stop is None:
        return
    for side in SIDES:
        amount = core_seconds(pod, side, runs, start, stop)
        if amount is not None:
            yield f"{side}.cpu.time", amount
