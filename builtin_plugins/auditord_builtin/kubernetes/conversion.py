"""From a pod that is over to a record, or to the reason why there is none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.pods import Pod, as_json, restore_pod
from auditord_builtin.kubernetes.rows import row_of
from auditord_builtin.kubernetes.runs import Runs, ended_at, known, runs_of
from auditord_hookspecs import InvalidRecord, Quarantined, Record
from auditord_hookspecs.mapping import build_components, build_meta, find_site
from auditord_hookspecs.records import MAX_NAME_GRAPHEMES

DELETED: Final = "Deleted"
"""The ``status`` of a pod that was removed before its end; the others are Kubernetes' phases."""

_OWN_LABELS: Final = ("podname", "namespace", "status", "site_id")
_FILTERED: Final = "filtered out"


class Finished(msgspec.Struct, frozen=True):
    """A pod as it was at its end.

    Args:
        pod: the last that was seen of it.
        runs: of its containers.
        stop: when it was over; None for one that still runs.
        status: its phase, or that it was deleted.
        figures: what Prometheus knows of it, by column.
    """

    pod: Pod
    runs: Runs
    stop: datetime | None
    status: str
    figures: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Skipped:
    """A pod that makes no record on purpose."""

    reason: str


@dataclass(frozen=True, slots=True)
class Converted:
    """A pod that makes a record.

    Args:
        record: what happened. The id holds the pod's uid, so the same id with another start time is a contradiction for
            people to look at, and no other run to count.
        left_out: labels that could not be kept, with the reason.
    """

    record: Record
    left_out: Sequence[str]


def conclude(config: KubernetesConfig, pod: Pod, runs: Runs, seen: datetime) -> Finished | Skipped:
    """A pod that is over or was deleted as it was at its end.

    Args:
        config: says which pods make records.
        pod: the last that was seen of it.
        runs: of its containers, as far as they were seen.
        seen: when it was seen to be over.
    """
    start = known(pod.status.start_time)
    if start is None:
        return Skipped("never started")
    status = pod.status.phase if pod.terminal else DELETED
    if config.job_filter.status and status not in config.job_filter.status:
        return Skipped(_FILTERED)
    return Finished(pod, runs, max(start, ended_at(pod, runs, seen)), status)


def convert_finished(config: KubernetesConfig, finished: Finished) -> Converted | Quarantined:
    """Make the record; never raises for what the pod holds."""
    try:
        return _converted(config, finished)
    except InvalidRecord as error:
        return Quarantined(source_id(finished.pod), {"finished": as_json(finished)}, str(error))


def source_id(pod: Pod) -> str:
    """What a pod is called in the quarantine."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}/{pod.uid}"


def _converted(config: KubernetesConfig, finished: Finished) -> Converted:
    pod, start = finished.pod, known(finished.pod.status.start_time)
    if start is None:
        raise InvalidRecord("status.startTime is missing")
    row = {**row_of(config, pod, finished.runs, start, finished.stop), "status": finished.status, **finished.figures}
    labels = build_meta(config.meta, row, _OWN_LABELS)
    own = (pod.metadata.name, pod.metadata.namespace, finished.status, find_site(config.sites, row))
    record = Record(
        record_id=record_id(config.record_prefix, pod),
        start_time=start,
        stop_time=finished.stop,
        components=build_components(config.components, row),
        meta={**labels.meta, **{name: (text,) for name, text in zip(_OWN_LABELS, own, strict=True)}},
    )
    return Converted(record, labels.left_out)


def record_id(prefix: str, pod: Pod) -> str:
    """AUDITOR's id. A name may have 253 characters, an id 256: what is too much is cut from the pod's name."""
    before, after = f"{prefix}-{pod.metadata.namespace}-", f"-{pod.uid}"
    return f"{before}{pod.metadata.name[: max(0, MAX_NAME_GRAPHEMES - len(before) - len(after))]}{after}"


def convert(config: KubernetesConfig, raw: Any) -> Record | None:  # Any: JSON from the quarantine
    """Try a quarantined pod again under today's configuration; None if it makes no record now.

    Raises:
        InvalidRecord: what is still wrong.
    """
    finished = _finished(raw) if "finished" in raw else _as_it_was(config, raw)
    if finished is None or (config.job_filter.status and finished.status not in config.job_filter.status):
        return None
    classified = convert_finished(config, finished)
    if isinstance(classified, Quarantined):
        raise InvalidRecord(classified.reason)
    return classified.record


def _finished(raw: Mapping[str, Any]) -> Finished:  # Any: JSON from the quarantine
    try:
        return msgspec.convert(raw["finished"], Finished)
    except msgspec.ValidationError as error:
        raise InvalidRecord(f"this is no pod: {error}") from error


def _as_it_was(config: KubernetesConfig, raw: Mapping[str, Any]) -> Finished | None:  # Any: JSON from the quarantine
    """A pod that could not even be read. One that was still running comes back by itself when it ends."""
    pod = restore_pod(raw.get("pod"))
    if not pod.terminal and not raw.get("gone"):
        return None
    classified = conclude(config, pod, runs_of(pod, {}), datetime.fromisoformat(raw["seen"]))
    return classified if isinstance(classified, Finished) else None
