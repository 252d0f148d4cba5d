"""The parts of pods that accounting needs: JSON, times and ends."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import msgspec

from auditord_hookspecs import InvalidRecord

LEFT_BEHIND: Final = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
"""Annotations that contain a copy of the pod."""

KUBELET: Final = "kubelet"
"""The program that starts containers and writes their status."""

RESIZE: Final = "resize"
"""The subresource through which programs change the resources of a pod in place."""

_Texts = dict[str, str] | None


class _Member(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of a pod. Unknown members are ignored."""


class Owner(_Member, frozen=True):
    """The object that created the pod."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class ManagedFields(_Member, frozen=True):
    """The last time at which a program wrote to the pod, or to a part such as ``status`` or ``resize``."""

    manager: str | None = None
    time: datetime | None = None
    subresource: str | None = None


class Metadata(_Member, frozen=True):
    """The names of the pod, its labels and its annotations."""

    name: str
    namespace: str
    uid: str
    resource_version: str = ""
    labels: _Texts = None
    annotations: _Texts = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: tuple[Owner, ...] | None = None
    managed_fields: tuple[ManagedFields, ...] | None = None


Quantities: TypeAlias = Mapping[str, str | int | float]
"""Quantities by resource. Numbers come from manifests that say ``cpu: 2``."""


class Resources(_Member, frozen=True):
    """The limits and requests of a container, or of a pod as a whole."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class Container(_Member, frozen=True):
    name: str
    resources: Resources | None = None
    restart_policy: str | None = None


class ClaimReference(_Member, frozen=True):
    """A ResourceClaim that the pod uses (DRA): one that exists, or one to be made from a template for this pod."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class Spec(_Member, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: Resources | None = None
    resource_claims: tuple[ClaimReference, ...] | None = None
    node_name: str | None = None
    priority_class_name: str | None = None
    scheduler_name: str | None = None
    service_account_name: str | None = None


class Span(_Member, frozen=True):
    """One run of a container."""

    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int = 0
    reason: str | None = None


class State(_Member, frozen=True):
    """The current or a former state of a container."""

    running: Span | None = None
    terminated: Span | None = None


class ContainerStatus(_Member, frozen=True):
    name: str
    state: State | None = None
    last_state: State | None = None
    restart_count: int = 0
    resources: Resources | None = None
    allocated_resources: dict[str, str | int | float] | None = None

    @property
    def waits(self) -> bool:
        """True if the container waits to start or restart, which is Kubernetes' default state."""
        return self.state is None or (self.state.running is None and self.state.terminated is None)


class Condition(_Member, frozen=True):
    type: str
    status: str = ""
    reason: str | None = None
    last_transition_time: datetime | None = None


class Status(_Member, frozen=True):
    phase: str = "Unknown"
    reason: str | None = None
    message: str | None = None
    start_time: datetime | None = None
    qos_class: str | None = None
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    resources: Resources | None = None
    allocated_resources: dict[str, str | int | float] | None = None
    resource_claim_statuses: tuple[ClaimReference, ...] | None = None


class Pod(_Member, frozen=True):
    metadata: Metadata
    spec: Spec = Spec()
    status: Status = Status()

    @property
    def uid(self) -> str:
        """A unique id, which also differs between pods of the same name."""
        return self.metadata.uid

    @property
    def noted_at(self) -> datetime | None:
        """The last time at which a program wrote to the pod, according to the API server."""
        metadata = self.metadata
        times = [metadata.creation_timestamp, *(each.time for each in metadata.managed_fields or ())]
        return max((moment for moment in times if moment is not None), default=None)

    @property
    def terminal(self) -> bool:
        """True if the pod has ended for good."""
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def statuses(self) -> tuple[ContainerStatus, ...]:
        """The statuses of all containers, init containers first."""
        return (*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ()))


_decoder: Final = msgspec.json.Decoder(Pod)


def decode_pod(raw: bytes | msgspec.Raw) -> Pod:
    """Decode a pod's JSON.

    Raises:
        InvalidRecord: the JSON is not a pod. The message says where.
    """
    try:
        return _slim(_decoder.decode(raw))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRecord(f"this is not a pod: {error}") from error


def restore_pod(value: Any) -> Pod:  # Any: JSON of our own, or of the quarantine
    """Convert decoded JSON to a pod.

    Raises:
        InvalidRecord: the JSON is not a pod.
    """
    try:
        return _slim(msgspec.convert(value, Pod))
    except msgspec.ValidationError as error:
        raise InvalidRecord(f"this is not a pod: {error}") from error


def _slim(pod: Pod) -> Pod:
    """Return the pod without annotations that copy it, and with few of its managed fields.

    These are the kubelet's, those of resizes, and the latest.
    """
    metadata, writers = pod.metadata, pod.metadata.managed_fields or ()
    kept = {name: text for name, text in (metadata.annotations or {}).items() if name not in LEFT_BEHIND}
    latest = max((each.time for each in writers if each.time is not None), default=None)
    last = tuple(
        each
        for each in writers
        if each.manager == KUBELET or each.subresource == RESIZE or (latest is not None and each.time == latest)
    )
    slim = msgspec.structs.replace(metadata, annotations=kept or None, managed_fields=last or None)
    return msgspec.structs.replace(pod, metadata=slim)


_NEVER: Final = 1971
"""Kubernetes writes the years 1 and 1970 for unknown times."""

_STOPPING: Final = {"Ready": "False", "ContainersReady": "False", "DisruptionTarget": "True"}
"""Conditions, and their values after containers have stopped."""

Runs: TypeAlias = dict[str, dict[str, str | None]]
"""The ends of runs by start, by container, as ISO 8601 texts for JSON. The end of a current run is None."""


def if_known(moment: datetime | None) -> datetime | None:
    """Return the instant, or None if it stands for an unknown time."""
    return moment if moment is not None and moment.year >= _NEVER else None


def find_reservation(pod: Pod) -> datetime | None:
    """Return when the scheduler reserved the pod's resources on its node, or None if no kubelet accepted the pod.

    This is the time of the condition PodScheduled, and at the latest that at which the kubelet accepted the pod.
    """
    start = if_known(pod.status.start_time)
    if start is None:
        return None
    scheduled = [
        moment
        for each in pod.status.conditions or ()
        if each.type == "PodScheduled" and each.status == "True" and (moment := if_known(each.last_transition_time))
    ]
    return min([start, *(max(moment, pod.metadata.creation_timestamp or moment) for moment in scheduled)])


def runs_of(pod: Pod, earlier: Runs) -> Runs:
    """Merge the runs in the pod's status with earlier ones.

    A status contains only the current and the previous run of a container. Earlier runs are known only from watching.
    """
    found: Runs = {name: dict(spans) for name, spans in earlier.items()}
    for status in pod.statuses:
        spans = found.setdefault(status.name, {})
        states = [state for state in (status.last_state, status.state) if state is not None]
        for span in (span for state in states for span in (state.terminated, state.running) if span is not None):
            start, end = if_known(span.started_at), if_known(span.finished_at)
            if start is not None:
                spans[start.isoformat()] = end.isoformat() if end else spans.get(start.isoformat())
    return {name: spans for name, spans in found.items() if spans}


def limit_runs(spans: Mapping[str, str | None], stop: datetime) -> Iterable[tuple[datetime, datetime]]:
    """Yield start and end of each run of one container.

    Each run ends no later than the next one starts, or than the pod stops. Ends can be missing, since a status contains
    only two runs, and the end of an earlier run may be unobserved.
    """
    known_ends = {datetime.fromisoformat(start): _instant(end) for start, end in spans.items()}
    starts = sorted(known_ends)
    for start, latest in zip(starts, [*starts[1:], stop], strict=True):
        yield start, min(known_ends[start] or latest, latest)


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def find_end(pod: Pod, runs: Runs, seen: datetime) -> datetime:
    """Return the end of a pod that has ended or was deleted.

    If all containers have ended, this is the last of their ends, as in AUDITOR. Otherwise, if the phase is terminal,
    statuses may be lost (an eviction), or claim that containers are still running or waiting for their image. The pod
    then ended when its conditions last changed, or when the kubelet last wrote its status, if later. Otherwise it
    was deleted, at ``deletion_timestamp`` at the latest. Without any of these times, ``seen`` is returned: the time at
    which the end was noticed. The result is never before a known end of a container.
    """
    ends = [end for end in _last_ends(runs) if end is not None]
    if _all_ended(pod, runs):
        return max(ends)
    conditions = [each for each in pod.status.conditions or () if _STOPPING.get(each.type) == each.status]
    writers = [each for each in pod.metadata.managed_fields or () if each.manager == KUBELET]
    times = [if_known(each.last_transition_time) for each in conditions] + [if_known(each.time) for each in writers]
    changed = [moment for moment in times if moment is not None and moment <= seen] if pod.terminal else []
    deleted = min(if_known(pod.metadata.deletion_timestamp) or seen, seen)
    return max([*ends, *(changed or [deleted])])


def _last_ends(runs: Runs) -> Sequence[datetime | None]:
    return [_instant(spans[max(spans, key=datetime.fromisoformat)]) for spans in runs.values()]


def _all_ended(pod: Pod, runs: Runs) -> bool:
    if not runs or None in _last_ends(runs):
        return False
    states = [status.state for status in pod.status.init_container_statuses or () if status.state is not None]
    if pod.terminal and any(state.terminated and state.terminated.exit_code for state in states):
        return True  # an init container failed, so that the others never ran
    for status in pod.status.container_statuses or ():
        ended = status.state.terminated if status.state is not None else None
        if ended is None or if_known(ended.finished_at) is None:
            return False  # containers that were lost with their node have no times
    return not {each.name for each in pod.spec.init_containers or ()}.issuperset(runs)


_DISRUPTIONS: Final[Mapping[str | None, str]] = {
    **dict.fromkeys(("PreemptionByScheduler", "EvictionByEvictionAPI", "TerminationByKubelet"), "preempted"),
    **dict.fromkeys(("DeletionByTaintManager", "DeletionByPodGC"), "node_fail"),
}
"""Outcomes by the reason of the condition DisruptionTarget, which Kubernetes sets since 1.26."""

_REASONS: Final[Mapping[str | None, str]] = {
    "DeadlineExceeded": "timeout",
    "Preempting": "preempted",
    **dict.fromkeys(("NodeLost", "NodeShutdown", "Shutdown", "Terminated"), "node_fail"),
}
"""Outcomes by the pod's ``reason``. Shutdown and Terminated are those of a node that shuts down in an orderly way."""

_DISRUPTED: Final = ("DisruptionTarget", "True")
_NODE_IS_SHORT: Final = ("The node was low on resource", "The node had condition")


def find_outcome(pod: Pod, stop: datetime) -> str:
    """Return how a pod that has ended or was deleted ended.

    A pod was cancelled if its containers failed after a request to delete it, with any exit code.
    """
    status, metadata = pod.status, pod.metadata
    if status.phase == "Succeeded":
        return "completed"
    states = [each.state.terminated for each in pod.statuses if each.state is not None]
    if any(span is not None and span.reason == "OOMKilled" for span in states):
        return "out_of_memory"
    if status.reason == "Evicted":  # by the kubelet: for the sake of the node, or because the pod used too much disk
        return "preempted" if (status.message or _NODE_IS_SHORT[0]).startswith(_NODE_IS_SHORT) else "failed"
    disrupted = [each.reason for each in status.conditions or () if (each.type, each.status) == _DISRUPTED]
    found = _REASONS.get(status.reason) or next(filter(None, map(_DISRUPTIONS.get, disrupted)), None)
    if found is not None or status.phase != "Failed":
        return found or "cancelled"
    deleted = if_known(metadata.deletion_timestamp)
    grace = timedelta(seconds=metadata.deletion_grace_period_seconds or 0)
    return "cancelled" if deleted is not None and deleted - grace < stop else "failed"
