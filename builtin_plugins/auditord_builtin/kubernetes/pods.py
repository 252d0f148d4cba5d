"""The parts of pods that accounting needs: JSON, times, ends and resources."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias

import msgspec

from auditord_hookspecs import InvalidRecord

LEFT_BEHIND: Final = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
"""Annotations that contain a copy of the pod."""

KUBELET: Final = "kubelet"
"""The program that starts containers and writes their status."""

_Texts = dict[str, str] | None


class _Member(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of a pod. Unknown members are ignored."""


class Owner(_Member, frozen=True):
    """The object that created the pod."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class ManagedFields(_Member, frozen=True):
    """The last time at which a program wrote to the pod."""

    manager: str | None = None
    time: datetime | None = None


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
    owner_references: tuple[Owner, ...] | None = None
    managed_fields: tuple[ManagedFields, ...] | None = None


class Resources(_Member, frozen=True):
    """Quantities by resource. Numbers come from manifests that say ``cpu: 2``."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class Container(_Member, frozen=True):
    """A container in the specification."""

    name: str
    resources: Resources | None = None
    restart_policy: str | None = None


class Spec(_Member, frozen=True):
    """The specification of the pod."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: Resources | None = None
    node_name: str | None = None
    priority_class_name: str | None = None
    scheduler_name: str | None = None
    service_account_name: str | None = None


class Span(_Member, frozen=True):
    """One run of a container."""

    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int = 0


class State(_Member, frozen=True):
    """The current or a former state of a container."""

    running: Span | None = None
    terminated: Span | None = None


class ContainerStatus(_Member, frozen=True):
    """The status of a container."""

    name: str
    state: State | None = None
    last_state: State | None = None
    restart_count: int = 0
    resources: Resources | None = None

    @property
    def waits(self) -> bool:
        """True if the container waits to start or restart, which is Kubernetes' default state."""
        return self.state is None or (self.state.running is None and self.state.terminated is None)


class Condition(_Member, frozen=True):
    """A condition of the pod."""

    type: str
    status: str = ""
    last_transition_time: datetime | None = None


class Status(_Member, frozen=True):
    """The status of the pod."""

    phase: str = "Unknown"
    reason: str | None = None
    start_time: datetime | None = None
    qos_class: str | None = None
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(_Member, frozen=True):
    """A pod."""

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
    """Return the pod without annotations that copy it, and with only the kubelet's and the latest managed fields."""
    metadata, writers = pod.metadata, pod.metadata.managed_fields or ()
    kept = {name: text for name, text in (metadata.annotations or {}).items() if name not in LEFT_BEHIND}
    latest = max((each.time for each in writers if each.time is not None), default=None)
    last = tuple(each for each in writers if each.manager == KUBELET or (latest is not None and each.time == latest))
    slim = msgspec.structs.replace(metadata, annotations=kept or None, managed_fields=last or None)
    return msgspec.structs.replace(pod, metadata=slim)


_NEVER: Final = 1971
"""Kubernetes writes the years 1 and 1970 for unknown times."""

_STOPPING: Final = {"Ready": "False", "ContainersReady": "False", "DisruptionTarget": "True"}
"""Conditions, and their values after containers have stopped."""

Runs: TypeAlias = dict[str, dict[str, str | None]]
"""The ends of runs by start, by container, as ISO 8601 texts for JSON. The end of a current run is None."""


def known(moment: datetime | None) -> datetime | None:
    """Return the instant, or None if it stands for an unknown time."""
    return moment if moment is not None and moment.year >= _NEVER else None


def runs_of(pod: Pod, earlier: Runs) -> Runs:
    """Merge the runs in the pod's status with earlier ones.

    A status contains only the current and the previous run of a container. Earlier runs are known only from watching.
    """
    found: Runs = {name: dict(spans) for name, spans in earlier.items()}
    for status in pod.statuses:
        spans = found.setdefault(status.name, {})
        states = [state for state in (status.last_state, status.state) if state is not None]
        for span in (span for state in states for span in (state.terminated, state.running) if span is not None):
            start, end = known(span.started_at), known(span.finished_at)
            if start is not None:
                spans[start.isoformat()] = end.isoformat() if end else spans.get(start.isoformat())
    return {name: spans for name, spans in found.items() if spans}


def seconds_by_container(runs: Runs, stop: datetime) -> Mapping[str, int]:
    """Return the runtime of each container in whole seconds, summed over its runs."""
    return {name: sum(_seconds(start, end) for start, end in _bounded(spans, stop)) for name, spans in runs.items()}


def _bounded(spans: Mapping[str, str | None], stop: datetime) -> Iterable[tuple[datetime, datetime]]:
    """Yield the runs of one container. Each run ends no later than the next one starts, or than the pod stops.

    Ends can be missing, since a status contains only two runs, and the end of an earlier run may be unobserved.
    """
    known_ends = {datetime.fromisoformat(start): _instant(end) for start, end in spans.items()}
    starts = sorted(known_ends)
    for start, latest in zip(starts, [*starts[1:], stop], strict=True):
        yield start, min(known_ends[start] or latest, latest)


def _seconds(start: datetime, end: datetime) -> int:
    return max(0, int((end - start).total_seconds()))


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def ended_at(pod: Pod, runs: Runs, seen: datetime) -> datetime:
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
    times = [known(each.last_transition_time) for each in conditions] + [known(each.time) for each in writers]
    changed = [moment for moment in times if moment is not None and moment <= seen] if pod.terminal else []
    deleted = min(known(pod.metadata.deletion_timestamp) or seen, seen)
    return max([*ends, *(changed or [deleted])])


def _last_ends(runs: Runs) -> Sequence[datetime | None]:
    return [_instant(spans[max(spans, key=datetime.fromisoformat)]) for spans in runs.values()]


def _all_ended(pod: Pod, runs: Runs) -> bool:
    if not runs or None in _last_ends(runs):
        return False
    initial = {each.name for each in pod.spec.init_containers or ()}
    over = all(_has_known_end(status) for status in pod.status.container_statuses or ())
    return _failed_at_start(pod) or (over and not initial.issuperset(runs))


def _has_known_end(status: ContainerStatus) -> bool:
    """Return True if the container has ended at a known time. Containers lost with their node have no times."""
    ended = status.state.terminated if status.state is not None else None
    return ended is not None and known(ended.finished_at) is not None


def _failed_at_start(pod: Pod) -> bool:
    """Return True if an init container failed, so that the others never ran."""
    states = [status.state for status in pod.status.init_container_statuses or () if status.state is not None]
    return pod.terminal and any(state.terminated and state.terminated.exit_code for state in states)


ResourceBound = Literal["limits", "requests"]
RESOURCE_BOUNDS: Final[tuple[ResourceBound, ...]] = ("limits", "requests")
_NONE: Final = Decimal(0)
_CPU: Final = "cpu"

Amounts = Mapping[str, Decimal]

_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,2})|(?P<suffix>[KMGTPE]i|[numkMGTPE])?)"
)
_SUFFIXES: Final = {
    **{name: Decimal(1024) ** power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{name: Decimal(1000) ** power for power, name in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{name: Decimal(1000) ** -power for power, name in enumerate(("m", "u", "n"), start=1)},
}


def parse_quantity(text: str) -> Decimal:
    """Parse a quantity.

    Raises:
        InvalidRecord: the text is not a quantity.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise InvalidRecord(f"{text[:60]!r} is not a quantity such as 500m, 1.5Gi or 2e3")
    scale = Decimal(10) ** int(match["exponent"] or 0) * _SUFFIXES.get(match["suffix"] or "", Decimal(1))
    return Decimal(match["number"]) * scale


def granted(pod: Pod, bound: ResourceBound) -> Amounts:
    """Return the amounts that the pod was granted, by resource, in cores, bytes or pieces.

    Containers run concurrently, so they add up. Init containers run before them, one after the other, so the largest
    amount counts if it is larger. Init containers that always restart (sidecars) run along with everything that follows
    them. The overhead of a runtime is added to requests. A pod has a limit only if all its containers do. Resources of
    the pod as a whole (``spec.resources``) take precedence.

    Raises:
        InvalidRecord: a quantity cannot be read. The message names the container and the resource.
    """
    orders = _PodResources(pod, bound)
    amounts = {name: orders.together(name) for name in orders.names}
    return {name: amount for name, amount in {**amounts, **orders.whole}.items() if amount is not None}


class _PodResources:
    def __init__(self, pod: Pod, bound: ResourceBound) -> None:
        actual = {status.name: status.resources for status in pod.statuses if status.resources is not None}
        started = pod.spec.init_containers or ()
        self._bound: ResourceBound = bound
        self.by_name = {
            each.name: _read(each.name, actual.get(each.name) or each.resources, bound)
            for each in (*started, *pod.spec.containers)
        }
        self._regular = pod.spec.containers
        self._initial = started
        overhead = pod.spec.overhead if bound == "requests" else None
        self._overhead = _quantities("overhead", overhead)
        self.whole = _read("the pod", pod.spec.resources, bound)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for amounts in self.by_name.values() for name in amounts)

    def together(self, name: str) -> Decimal | None:
        lasting = (*self._regular, *(each for each in self._initial if _is_sidecar(each)))
        if self._bound == "limits" and any(name not in self.by_name[each.name] for each in lasting):
            return None
        steady = sum((self._amount(each, name) for each in lasting), _NONE)
        return max(steady, self._at_start(name)) + self._overhead.get(name, _NONE)

    def _at_start(self, name: str) -> Decimal:
        beside, peak = _NONE, _NONE
        for each in self._initial:
            peak = max(peak, beside + self._amount(each, name))
            beside += self._amount(each, name) if _is_sidecar(each) else _NONE
        return peak

    def _amount(self, container: Container, name: str) -> Decimal:
        return self.by_name[container.name].get(name, _NONE)


def core_seconds(pod: Pod, bound: ResourceBound, runs: Runs, start: datetime, stop: datetime) -> Decimal | None:
    """Return the CPU limits or requests times their duration in seconds, summed over all runs of all containers.

    Returns None if the pod has no CPU limit (because a container has none) or no CPU request.

    Raises:
        InvalidRecord: a quantity cannot be read.
    """
    if granted(pod, bound).get(_CPU) is None:
        return None
    orders, whole = _PodResources(pod, bound), max(0, int((stop - start).total_seconds()))
    seconds = seconds_by_container(runs, stop) or dict.fromkeys(_unobserved(pod), whole)
    if _CPU in orders.whole:
        return orders.whole[_CPU] * (whole if seconds else 0)
    cpus = {name: granted.get(_CPU, _NONE) for name, granted in orders.by_name.items()}
    return sum((cpus.get(name, _NONE) * ran for name, ran in seconds.items()), _NONE)


def _unobserved(pod: Pod) -> Iterable[str]:
    """Return the containers that may have run unobserved. They count for the pod's whole time.

    Statuses are lost when a pod is evicted. Containers whose status says that they wait (for an image) are left out.
    """
    if pod.status.phase == "Pending":
        return ()
    waiting = {status.name for status in pod.status.container_statuses or () if status.waits}
    return [each.name for each in pod.spec.containers if each.name not in waiting]


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def _read(where: str, resources: Resources | None, bound: ResourceBound) -> Amounts:
    given = None if resources is None else resources.limits if bound == "limits" else resources.requests
    return _quantities(f"{where}: {bound}", given)


def _quantities(where: str, given: Mapping[str, str | int | float] | None) -> Amounts:
    found: dict[str, Decimal] = {}
    for name, text in (given or {}).items():
        try:
            found[name] = parse_quantity(str(text))
        except InvalidRecord as error:
            raise InvalidRecord(f"{where}.{name}: {error}") from error
    return found
