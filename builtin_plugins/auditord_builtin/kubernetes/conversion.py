"""Convert a pod, ended or running, to a record, or to the reason why it makes none."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec

from auditord_builtin.kubernetes.amounts import CPU, MEMORY, RESOURCE_BOUNDS, Holding, Size, Sizes, Weight
from auditord_builtin.kubernetes.claims import Claims, find_problem, share_devices
from auditord_builtin.kubernetes.config import CORES, GPUS, KubernetesConfig
from auditord_builtin.kubernetes.pods import (
    Owner,
    Pod,
    Runs,
    find_end,
    find_outcome,
    find_reservation,
    if_known,
    restore_pod,
    runs_of,
)
from auditord_hookspecs import InvalidRecord, LeftOut, Produced, Quarantined, Record
from auditord_hookspecs.mapping import PartialRow, Row, build_components, build_meta, columns, find_site
from auditord_hookspecs.outcomes import Converted, Skipped, unwrap_retry
from auditord_hookspecs.records import MAX_NAME_GRAPHEMES

DELETED: Final = "Deleted"
"""The ``status`` of a pod that was deleted before it ended. Other statuses are Kubernetes' phases."""

OWN_LABELS: Final = ("podname", "namespace", "status", "site_id")
_GPU_SECONDS: Final = "gpu_seconds"
_TOTALS: Final = ("core_seconds", "memory_seconds")
_MEBIBYTE: Final = Decimal(1024**2)
_FILTERED: Final = "filtered out"


class History(msgspec.Struct, frozen=True):
    """The data from earlier versions of a pod.

    Args:
        runs: the runs of its containers.
        sizes: its resources over time; empty if they are only known from the last version.
        claims: the devices of its ResourceClaims.
    """

    runs: Runs = {}
    sizes: Sizes = ()
    claims: Claims = {}


class PodToConvert(msgspec.Struct, frozen=True):
    """A pod to convert.

    Args:
        pod: the last known version.
        history: the data from its earlier versions.
        stop: the pod's end; None if it is still running.
        status: the pod's phase, or ``Deleted``.
        metrics: the values from Prometheus, by column.
    """

    pod: Pod
    history: History
    stop: datetime | None
    status: str
    metrics: dict[str, str] = {}


def determine_end(config: KubernetesConfig, pod: Pod, history: History, seen: datetime) -> PodToConvert | Skipped:
    """Determine the end of a pod that has ended or was deleted. ``seen`` is when the collector noticed the end.

    Return the reason for a pod that never started, or whose status is filtered out.
    """
    start = if_known(pod.status.start_time)
    if start is None:
        return Skipped("never started")
    status = pod.status.phase if pod.terminal else DELETED
    if config.job_filter.status and status not in config.job_filter.status:
        return Skipped(_FILTERED)
    return PodToConvert(pod, history, max(start, find_end(pod, history.runs, seen)), status)


def convert_pod(config: KubernetesConfig, to_convert: PodToConvert) -> Converted | Quarantined:
    """Convert a pod. One with invalid content is returned as Quarantined; InvalidRecord is never raised."""
    try:
        return _make_record(config, to_convert)
    except InvalidRecord as error:
        return Quarantined(source_id(to_convert.pod), {"finished": msgspec.to_builtins(to_convert)}, str(error))


def source_id(pod: Pod) -> str:
    """Return the name of a pod in the quarantine."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}/{pod.uid}"


def _make_record(config: KubernetesConfig, to_convert: PodToConvert) -> Converted:
    pod, start = to_convert.pod, if_known(to_convert.pod.status.start_time)
    if start is None:
        raise InvalidRecord("status.startTime is missing")
    row = _row_of(config, to_convert, start)
    stop = to_convert.stop
    labels = build_meta(config.meta, row, OWN_LABELS, None if stop is None else find_outcome(pod, stop))
    left_out = [*labels.left_out]
    own = (pod.metadata.name, pod.metadata.namespace, to_convert.status, find_site(config.sites, row))
    components = build_components(config.components, row, left_out, config.never_zero)
    built = set[str]() if isinstance(row, PartialRow) else {each.name for each in components}
    for rule in config.components:
        if rule.name in built and rule.key in {*CORES, GPUS} and (amount := row.get(rule.key)):
            exact = Decimal(amount) * rule.factor
            if exact % 1:
                reason = f"component {rule.name}: {exact.normalize():f} was rounded to a whole number; a total is exact"
                left_out.append(LeftOut(rule.name, reason, rounded=True))
    record = Record(
        record_id=record_id(config.record_prefix, pod),
        start_time=start,
        stop_time=stop,
        components=components,
        meta={**labels.meta, **{name: (text,) for name, text in zip(OWN_LABELS, own, strict=True)}},
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
    if "finished" in raw:
        try:
            to_convert = msgspec.convert(raw["finished"], PodToConvert)
        except msgspec.ValidationError as error:
            raise InvalidRecord(f"this is not a pod: {error}") from error
    else:  # the pod could not be decoded before
        pod = restore_pod(raw.get("pod"))
        if not pod.terminal and not raw.get("gone"):
            return None  # a running pod is read again at its end
        ended = determine_end(config, pod, History(runs_of(pod, {})), datetime.fromisoformat(raw["seen"]))
        if isinstance(ended, Skipped):
            return None
        to_convert = ended
    if config.job_filter.status and to_convert.status not in config.job_filter.status:
        return None
    return unwrap_retry(convert_pod(config, to_convert))


def _row_of(config: KubernetesConfig, to_convert: PodToConvert, start: datetime) -> Row:
    """Return all columns of a pod as strings. Totals are only present if the pod has ended.

    If any limit or request is not a quantity, all columns of resources that rules use are marked as unreadable. So are
    the columns of GPUs if the devices of a ResourceClaim are unknown.
    """
    pod, amounts, faults = to_convert.pod, dict[str, str](), dict[str, str]()
    try:
        held = _Held(config, to_convert, start)
        amounts.update({name: f"{amount:f}" for name, amount in held.amounts()})
    except InvalidRecord as error:
        used = columns(config.sites, config.meta, config.components)
        prefixes = tuple(f"{bound}." for bound in RESOURCE_BOUNDS)
        unreadable = {GPUS, _GPU_SECONDS, *_TOTALS}
        faults.update({name: str(error) for name in used if name in unreadable or name.startswith(prefixes)})
    else:
        try:
            amounts.update({name: f"{amount:f}" for name, amount in held.gpus()})
        except InvalidRecord as error:
            faults.update(dict.fromkeys((GPUS, _GPU_SECONDS), str(error)))
    row = {
        **_names(to_convert),
        **{f"label.{name}": text for name, text in (pod.metadata.labels or {}).items()},
        **{f"annotation.{name}": text for name, text in (pod.metadata.annotations or {}).items()},
        **amounts,
        "status": to_convert.status,
        **to_convert.metrics,
    }
    return PartialRow(row, faults) if faults else row


class _Held:
    """The amounts of a pod by column.

    Raises:
        InvalidRecord: a quantity cannot be read.
    """

    def __init__(self, config: KubernetesConfig, to_convert: PodToConvert, start: datetime) -> None:
        history = to_convert.history
        self._config = config
        self._claims = history.claims
        self._unknown = find_problem(to_convert.pod, history.claims)
        self._ended = to_convert.stop is not None
        self._holding = Holding(to_convert.pod, history.sizes, history.runs, to_convert.stop or start)

    def amounts(self) -> Iterable[tuple[str, Decimal]]:
        """Yield the columns of resources, except GPUs."""
        by_bound = {bound: self._holding.amounts(bound) for bound in RESOURCE_BOUNDS}
        for bound, amounts in by_bound.items():
            yield from ((f"{bound}.{name}", amount) for name, amount in amounts.items())
        if not self._ended:
            return
        for bound in RESOURCE_BOUNDS:
            if CPU in by_bound[bound]:
                yield f"{bound}.cpu.time", self._holding.while_running(_cores, bound=bound)
        if CPU in by_bound["requests"]:
            yield "core_seconds", self._total(_cores)
        if MEMORY in by_bound["requests"]:
            yield "memory_seconds", self._total(_mebibytes)

    def gpus(self) -> Iterable[tuple[str, Decimal]]:
        """Yield the columns of GPUs, unless the pod has none.

        Raises:
            InvalidRecord: the devices of a ResourceClaim are unknown.
        """
        if self._unknown is not None:
            raise InvalidRecord(self._unknown)
        requested, per_unit = self._holding.amounts("requests"), self._config.gpus_per_unit
        own = sum((amount * per_unit(name) for name, amount in requested.items()), Decimal(0))
        if gpus := own + self._shares(self._holding.sizes[-1]):
            yield GPUS, gpus
            if self._ended:
                yield _GPU_SECONDS, self._total(per_unit, self._shares)

    def _shares(self, size: Size) -> Decimal:
        return share_devices(self._claims, size, self._config.gpus_per_device)

    def _total(self, weight: Weight, shares: Callable[[Size], Decimal] | None = None) -> Decimal:
        holding, reserved = self._holding, self._config.held_while == "reserved"
        return holding.while_reserved(weight, shares) if reserved else holding.while_running(weight, shares)


def _cores(resource: str) -> Decimal:
    return Decimal(resource == CPU)


def _mebibytes(resource: str) -> Decimal:
    return 1 / _MEBIBYTE if resource == MEMORY else Decimal(0)


def _names(to_convert: PodToConvert) -> Mapping[str, str]:
    pod, sizes = to_convert.pod, to_convert.history.sizes
    created, scheduled = pod.metadata.creation_timestamp, sizes[0].since if sizes else find_reservation(pod)
    waited = None if created is None or scheduled is None else max(0, (scheduled - created) // timedelta(seconds=1))
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
        "wait_time": None if waited is None else str(waited),
        "restarts": str(sum(status.restart_count for status in pod.statuses)),
    }
    return {name: text for name, text in names.items() if text}
