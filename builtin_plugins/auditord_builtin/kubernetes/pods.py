"""The parts of a pod that accounting needs: its JSON, its times and end, its resources."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias

import msgspec

from auditord_hookspecs import InvalidRecord

LEFT_BEHIND: Final = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
"""Annotations that hold a copy of the pod."""

KUBELET: Final = "kubelet"
"""The program that starts containers and writes their status."""

_Texts = dict[str, str] | None


class _Member(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of a pod; unknown members are ignored."""


class Owner(_Member, frozen=True):
    """The maker of the pod."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class ManagedFields(_Member, frozen=True):
    """The last time at which one program wrote to the pod."""

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
    """Quantities by resource; numbers are allowed where a manifest says ``cpu: 2``."""

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
    """The present or a former state of a container."""

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
        """True if the container is to run, or to run again, which is Kubernetes' default."""
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
        """An id that differs for every pod, also for later ones with the same name."""
        return self.metadata.uid

    @property
    def noted_at(self) -> datetime | None:
        """The last time at which a program wrote to the pod, according to the API server: it existed then."""
        metadata = self.metadata
        times = [metadata.creation_timestamp, *(each.time for each in metadata.managed_fields or ())]
        return max((moment for moment in times if moment is not None), default=None)

    @property
    def terminal(self) -> bool:
        """True if the pod has ended for good."""
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def statuses(self) -> tuple[ContainerStatus, ...]:
        """The statuses of all its containers."""
        return (*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ()))


_decoder: Final = msgspec.json.Decoder(Pod)


def decode_pod(raw: bytes | msgspec.Raw) -> Pod:
    """Return a pod from its JSON.

    Raises:
        InvalidRecord: the JSON is no pod; the text says where.
    """
    try:
        return _slim(_decoder.decode(raw))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRecord(f"this is no pod: {error}") from error


def restore_pod(value: Any) -> Pod:  # Any: JSON of our own, or of the quarantine
    """Return a pod from decoded JSON.

    Raises:
        InvalidRecord: the JSON is no pod.
    """
    try:
        return _slim(msgspec.convert(value, Pod))
    except msgspec.ValidationError as error:
        raise InvalidRecord(f"this is no pod: {error}") from error


def _slim(pod: Pod) -> Pod:
    """Return the pod without copies of itself; of its writers keep only the kubelet and the last one."""
    metadata, writers = pod.metadata, pod.metadata.managed_fields or ()
    kept = {name: text for name, text in (metadata.annotations or {}).items() if name not in LEFT_BEHIND}
    latest = max((each.time for each in writers if each.time is not None), default=None)
    last = tuple(each for each in writers if each.manager == KUBELET or (latest is not None and each.time == latest))
    slim = msgspec.structs.replace(metadata, annotations=kept or None, managed_fields=last or None)
    return msgspec.structs.replace(pod, metadata=slim)


_NEVER: Final = 1971
"""Kubernetes writes the years 1 and 1970 for unknown times."""

_STOPPING: Final = {"Ready": "False", "ContainersReady": "False", "DisruptionTarget": "True"}
"""Conditions that change when containers stop."""

Runs: TypeAlias = dict[str, dict[str, str | None]]
"""The start and end of each run, by container; the end is None for a current run. ISO 8601, since it is kept as JSON.
"""


def known(moment: datetime | None) -> datetime | None:
    """Return the instant, or None if Kubernetes wrote it for an unknown time."""
    return moment if moment is not None and moment.year >= _NEVER else None


def runs_of(pod: Pod, earlier: Runs) -> Runs:
    """Return all known runs of the containers: of this status, and of earlier ones.

    A status names the current run of a container and the one before it. Earlier runs are known only from watching.
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
    """Return the time of each container in whole seconds, summed over its runs."""
    return {name: sum(_seconds(start, end) for start, end in _bounded(spans, stop)) for name, spans in runs.items()}


def _bounded(spans: Mapping[str, str | None], stop: datetime) -> Iterable[tuple[datetime, datetime]]:
    """Yield the runs of one container. Each ends at the latest when the next one starts, or with the pod.

    Ends can be missing: a status names only two runs, and earlier ones may not have been observed.
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
    """Return the end of a pod that is over, or was deleted.

    The last end of its containers, as with AUDITOR, if all of them have ended. Otherwise a deletion ended it, whose
    time Kubernetes notes as a latest one. In a terminal phase the statuses of containers may be lost (an eviction), or
    say that they still run or wait for their image: then its conditions changed, or the kubelet last wrote its status.
    Without any of these, it ended when its end was noticed.
    """
    ends = [end for end in _last_ends(runs) if end is not None]
    if _all_ended(pod, runs):
        return max(ends)
    conditions = [each for each in pod.status.conditions or () if _STOPPING.get(each.type) == each.status]
    writers = [each for each in pod.metadata.managed_fields or () if each.manager == KUBELET]
    said = [known(each.last_transition_time) for each in conditions] + [known(each.time) for each in writers]
    changed = [moment for moment in said if moment is not None and moment <= seen] if pod.terminal else []
    gone = min(known(pod.metadata.deletion_timestamp) or seen, seen)
    return max([*ends, *(changed or [gone])])


def _last_ends(runs: Runs) -> Sequence[datetime | None]:
    """Return the end of each container's last run. Earlier ends say nothing about the pod's end."""
    return [_instant(spans[max(spans, key=datetime.fromisoformat)]) for spans in runs.values()]


def _all_ended(pod: Pod, runs: Runs) -> bool:
    if not runs or None in _last_ends(runs):
        return False
    initial = {each.name for each in pod.spec.init_containers or ()}
    over = all(_says_its_end(status) for status in pod.status.container_statuses or ())
    return _failed_at_start(pod) or (over and not initial.issuperset(runs))


def _says_its_end(status: ContainerStatus) -> bool:
    """Return True if the container has ended and will not restart. One that was lost with its node has no times."""
    ended = status.state.terminated if status.state is not None else None
    return ended is not None and known(ended.finished_at) is not None


def _failed_at_start(pod: Pod) -> bool:
    """Return True if an init container ended the pod, so that the others never ran."""
    states = [status.state for status in pod.status.init_container_statuses or () if status.state is not None]
    return pod.terminal and any(state.terminated and state.terminated.exit_code for state in states)


Side = Literal["limits", "requests"]
SIDES: Final[tuple[Side, ...]] = ("limits", "requests")
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
    """Return the value of a quantity.

    Raises:
        InvalidRecord: the text is not a quantity.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise InvalidRecord(f"{text[:60]!r} is no quantity such as 500m, 1.5Gi or 2e3")
    scale = Decimal(10) ** int(match["exponent"] or 0) * _SUFFIXES.get(match["suffix"] or "", Decimal(1))
    return Decimal(match["number"]) * scale


def granted(pod: Pod, side: Side) -> Amounts:
    """Return the amounts that the pod held, by resource, in cores, bytes and pieces.

    Containers run side by side and add up; init containers run one after the other before them, so the largest counts
    where it is larger; init containers that restart always (sidecars) run with all that follow them. A runtime's
    overhead belongs to the requests. Limits hold for a pod if every container has one: without it there is none.
    Resources of the pod as a whole (``spec.resources``) take precedence.

    Raises:
        InvalidRecord: a quantity cannot be read; the text names container and resource.
    """
    orders = _Orders(pod, side)
    amounts = {name: orders.together(name) for name in orders.names}
    return {name: amount for name, amount in {**amounts, **orders.whole}.items() if amount is not None}


class _Orders:
    """The limits or the requests of one pod."""

    def __init__(self, pod: Pod, side: Side) -> None:
        actual = {status.name: status.resources for status in pod.statuses if status.resources is not None}
        started = pod.spec.init_containers or ()
        self._side: Side = side
        self.by_name = {
            each.name: _read(each.name, actual.get(each.name) or each.resources, side)
            for each in (*started, *pod.spec.containers)
        }
        self._regular = pod.spec.containers
        self._initial = started
        overhead = pod.spec.overhead if side == "requests" else None
        self._overhead = _quantities("overhead", overhead)
        self.whole = _read("the pod", pod.spec.resources, side)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for amounts in self.by_name.values() for name in amounts)

    def together(self, name: str) -> Decimal | None:
        lasting = (*self._regular, *(each for each in self._initial if _is_sidecar(each)))
        if self._side == "limits" and any(name not in self.by_name[each.name] for each in lasting):
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


def core_seconds(pod: Pod, side: Side, runs: Runs, start: datetime, stop: datetime) -> Decimal | None:
    """CPU limits or requests times the time for which they were held, over all runs of all containers.

    None if it has no limit (a container is without one) or no request.

    Raises:
        InvalidRecord: a quantity cannot be read.
    """
    if granted(pod, side).get(_CPU) is None:
        return None
    orders, whole = _Orders(pod, side), max(0, int((stop - start).total_seconds()))
    seconds = seconds_by_container(runs, stop) or dict.fromkeys(_unseen(pod), whole)
    if _CPU in orders.whole:
        return orders.whole[_CPU] * (whole if seconds else 0)
    cpus = {name: granted.get(_CPU, _NONE) for name, granted in orders.by_name.items()}
    return sum((cpus.get(name, _NONE) * ran for name, ran in seconds.items()), _NONE)


def _unseen(pod: Pod) -> Iterable[str]:
    """Containers that may have run although nothing is known of it: they count for the pod's whole time.

    Statuses get lost when a pod is evicted. One that says that a container waits (for its image) is none of these.
    """
    if pod.status.phase == "Pending":
        return ()
    waiting = {status.name for status in pod.status.container_statuses or () if status.waits}
    return [each.name for each in pod.spec.containers if each.name not in waiting]


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def _read(where: str, resources: Resources | None, side: Side) -> Amounts:
    given = None if resources is None else resources.limits if side == "limits" else resources.requests
    return _quantities(f"{where}: {side}", given)


def _quantities(where: str, given: Mapping[str, str | int | float] | None) -> Amounts:
    found: dict[str, Decimal] = {}
    for name, text in (given or {}).items():
        try:
            found[name] = parse_quantity(str(text))
        except InvalidRecord as error:
            raise InvalidRecord(f"{where}.{name}: {error}") from error
    return found
