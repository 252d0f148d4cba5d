"""Convert a pod, ended or running, to a record, or to the reason why it makes none."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgspec

from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.pods import (
    RESOURCE_BOUNDS,
    Owner,
    Pod,
    Runs,
    core_seconds,
    ended_at,
    granted,
    known,
    restore_pod,
    runs_of,
)
from auditord_hookspecs import InvalidRecord, Produced, Quarantined, Record
from auditord_hookspecs.mapping import PartialRow, Row, build_components, build_meta, columns, find_site
from auditord_hookspecs.outcomes import Converted, Skipped, retried
from auditord_hookspecs.records import MAX_NAME_GRAPHEMES

DELETED: Final = "Deleted"
"""The ``status`` of a pod that was deleted before it ended. Other statuses are Kubernetes' phases."""

_OWN_LABELS: Final = ("podname", "namespace", "status", "site_id")
_GPU: Final = "gpu"
_FILTERED: Final = "filtered out"


class PodToConvert(msgspec.Struct, frozen=True):
    """A pod to convert.

    Args:
        pod: the last known version.
        runs: the runs of its containers.
        stop: the pod's end; None if it is still running.
        status: the pod's phase, or ``Deleted``.
        metrics: the values from Prometheus, by column. The first versions stored them as ``figures``.
    """

    pod: Pod
    runs: Runs
    stop: datetime | None
    status: str
    metrics: dict[str, str] = msgspec.field(default_factory=dict[str, str], name="figures")


def determine_end(config: KubernetesConfig, pod: Pod, runs: Runs, seen: datetime) -> PodToConvert | Skipped:
    """Determine the end of a pod that has ended or was deleted. ``seen`` is when the collector noticed the end.

    Return the reason for a pod that never started, or whose status is filtered out.
    """
    start = known(pod.status.start_time)
    if start is None:
        return Skipped("never started")
    status = pod.status.phase if pod.terminal else DELETED
    if config.job_filter.status and status not in config.job_filter.status:
        return Skipped(_FILTERED)
    return PodToConvert(pod, runs, max(start, ended_at(pod, runs, seen)), status)


def convert_pod(config: KubernetesConfig, to_convert: PodToConvert) -> Converted | Quarantined:
    """Convert a pod. One with invalid content is returned as Quarantined; InvalidRecord is never raised."""
    try:
        return _converted(config, to_convert)
    except InvalidRecord as error:
        return Quarantined(source_id(to_convert.pod), {"finished": msgspec.to_builtins(to_convert)}, str(error))


def source_id(pod: Pod) -> str:
    """Return the name of a pod in the quarantine."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}/{pod.uid}"


def _converted(config: KubernetesConfig, to_convert: PodToConvert) -> Converted:
    pod, start = to_convert.pod, known(to_convert.pod.status.start_time)
    if start is None:
        raise InvalidRecord("status.startTime is missing")
    row = _row_of(config, to_convert, start)
    labels = build_meta(config.meta, row, _OWN_LABELS)
    left_out = [*labels.left_out]
    own = (pod.metadata.name, pod.metadata.namespace, to_convert.status, find_site(config.sites, row))
    record = Record(
        record_id=record_id(config.record_prefix, pod),
        start_time=start,
        stop_time=to_convert.stop,
        components=build_components(config.components, row, left_out, config.never_zero),
        meta={**labels.meta, **{name: (text,) for name, text in zip(_OWN_LABELS, own, strict=True)}},
    )
    # The id contains the pod's uid, so the same id with another start is not another run but an error to report.
    return Converted(Produced(record, source_id=source_id(pod)), left_out)


def record_id(prefix: str, pod: Pod) -> str:
    """Return the same id as AUDITOR. The pod's name is truncated if the id would exceed 256 characters."""
    before, after = f"{prefix}-{pod.metadata.namespace}-", f"-{pod.uid}"
    return f"{before}{pod.metadata.name[: max(0, MAX_NAME_GRAPHEMES - len(before) - len(after))]}{after}"


def convert(config: KubernetesConfig, raw: Any) -> Record | Produced | None:  # Any: JSON from the quarantine
    """Convert a quarantined pod again with the current configuration. Return None if it makes no record.

    Raises:
        InvalidRecord: the pod still cannot be converted.
    """
    to_convert = _decoded(raw) if "finished" in raw else _decode_again(config, raw)
    if to_convert is None or (config.job_filter.status and to_convert.status not in config.job_filter.status):
        return None
    return retried(convert_pod(config, to_convert))


def _decoded(raw: Mapping[str, Any]) -> PodToConvert:  # Any: JSON from the quarantine
    try:
        return msgspec.convert(raw["finished"], PodToConvert)
    except msgspec.ValidationError as error:
        raise InvalidRecord(f"this is not a pod: {error}") from error


def _decode_again(
    config: KubernetesConfig, raw: Mapping[str, Any]
) -> PodToConvert | None:  # Any: JSON from the quarantine
    """Decode a pod that could not be decoded before. Return None for a running pod, which is read again at its end."""
    pod = restore_pod(raw.get("pod"))
    if not pod.terminal and not raw.get("gone"):
        return None
    ended = determine_end(config, pod, runs_of(pod, {}), datetime.fromisoformat(raw["seen"]))
    return ended if isinstance(ended, PodToConvert) else None


def _row_of(config: KubernetesConfig, to_convert: PodToConvert, start: datetime) -> Row:
    """Return all columns of a pod as strings. Core-seconds are only present if the pod has ended.

    If any limit or request is not a quantity, all columns of limits and requests that rules use are marked as
    unreadable.
    """
    pod, amounts, faults = to_convert.pod, dict[str, str](), dict[str, str]()
    try:
        quantities = (*_amounts(config, pod), *_times(pod, to_convert.runs, start, to_convert.stop))
        amounts.update({name: f"{amount:f}" for name, amount in quantities})
    except InvalidRecord as error:
        used = columns(config.sites, config.meta, config.components)
        prefixes = tuple(f"{bound}." for bound in RESOURCE_BOUNDS)
        unreadable = [name for name in used if name == _GPU or name.startswith(prefixes)]
        faults.update(dict.fromkeys(unreadable, str(error)))
    row = {
        **_names(pod),
        **{f"label.{name}": text for name, text in (pod.metadata.labels or {}).items()},
        **{f"annotation.{name}": text for name, text in (pod.metadata.annotations or {}).items()},
        **amounts,
        "status": to_convert.status,
        **to_convert.metrics,
    }
    return PartialRow(row, faults) if faults else row


def _names(pod: Pod) -> Mapping[str, str]:
    owners = pod.metadata.owner_references or ()
    owner = next((each for each in owners if each.controller), owners[0] if owners else Owner())
    names = {
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
    return {name: text for name, text in names.items() if text}


def _amounts(config: KubernetesConfig, pod: Pod) -> Iterable[tuple[str, Decimal]]:
    by_bound = {bound: granted(pod, bound) for bound in RESOURCE_BOUNDS}
    for bound, amounts in by_bound.items():
        yield from ((f"{bound}.{name}", amount) for name, amount in amounts.items())
    # Limits and requests of GPUs are equal. If one is missing, the cluster fills it in.
    resources = dict.fromkeys(name for amounts in by_bound.values() for name in amounts)
    largest = {name: max(each.get(name, Decimal(0)) for each in by_bound.values()) for name in resources}
    gpus = sum((amount for name, amount in largest.items() if config.gpu_resources.search(name)), Decimal(0))
    if gpus:
        yield _GPU, gpus


def _times(pod: Pod, runs: Runs, start: datetime, stop: datetime | None) -> Iterable[tuple[str, Decimal]]:
    if stop is None:
        return
    for bound in RESOURCE_BOUNDS:
        amount = core_seconds(pod, bound, runs, start, stop)
        if amount is not None:
            yield f"{bound}.cpu.time", amount
