"""The members of a pod's JSON that matter to accounting; all others are left behind when it is decoded.

The members are those of the core API v1 (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/).
Decoded pods can be written as JSON again and be kept: some hundred bytes instead of ten thousand.
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from auditord_hookspecs import InvalidRecord

LEFT_BEHIND: Final = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
"""Annotations that hold a copy of the pod."""

KUBELET: Final = "kubelet"
"""The program that starts containers, and writes how they fare."""

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
    """The names of the pod, and what is attached to it."""

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
    """A container as it was ordered."""

    name: str
    resources: Resources | None = None
    restart_policy: str | None = None


class Spec(_Member, frozen=True):
    """The pod as it was ordered."""

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
        """True if it is to run, or to run again; Kubernetes' default where nothing is said."""
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
        """Text that tells it from every other pod, also from later ones of its name."""
        return self.metadata.uid

    @property
    def noted_at(self) -> datetime | None:
        """The last time at which a program wrote to it, as far as the API server noted it: then it was there."""
        metadata = self.metadata
        times = [metadata.creation_timestamp, *(each.time for each in metadata.managed_fields or ())]
        return max((moment for moment in times if moment is not None), default=None)

    @property
    def terminal(self) -> bool:
        """True if it is over for good."""
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def statuses(self) -> tuple[ContainerStatus, ...]:
        """The statuses of all its containers."""
        return (*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ()))


_decoder: Final = msgspec.json.Decoder(Pod)


def decode_pod(raw: bytes | msgspec.Raw) -> Pod:
    """A pod from its JSON.

    Raises:
        InvalidRecord: it is none; the text says where.
    """
    try:
        return _slim(_decoder.decode(raw))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRecord(f"this is no pod: {error}") from error


def restore_pod(value: Any) -> Pod:  # Any: JSON of our own, or of the quarantine
    """A pod from JSON that was decoded already.

    Raises:
        InvalidRecord: it is none.
    """
    try:
        return _slim(msgspec.convert(value, Pod))
    except msgspec.ValidationError as error:
        raise InvalidRecord(f"this is no pod: {error}") from error


def _slim(pod: Pod) -> Pod:
    """The pod without copies of itself, and of its writers with the kubelet and the last one alone."""
    metadata, writers = pod.metadata, pod.metadata.managed_fields or ()
    kept = {name: text for name, text in (metadata.annotations or {}).items() if name not in LEFT_BEHIND}
    latest = max((each.time for each in writers if each.time is not None), default=None)
    last = tuple(each for each in writers if each.manager == KUBELET or (latest is not None and each.time == latest))
    slim = msgspec.structs.replace(metadata, annotations=kept or None, managed_fields=last or None)
    return msgspec.structs.replace(pod, metadata=slim)
