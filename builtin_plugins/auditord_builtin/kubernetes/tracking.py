"""The state between runs: how far each namespace has been read, pods that run, and those that wait for metrics."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from auditord_builtin.kubernetes.conversion import Finished
from auditord_builtin.kubernetes.pods import Pod
from auditord_builtin.kubernetes.runs import Runs, runs_of

_RUNNING: Final = "pod/"
_WAITING: Final = "figures/"

Json = Any  # Any: whatever JSON can hold


class Position(msgspec.Struct, frozen=True):
    """The position in one scope.

    Args:
        at: all that had happened until then is known.
        version: the resource version from which a watch goes on; None: it is too old, and the scope must be listed.
        selector: the label selectors of the reading; with others the scope must be listed as well.
    """

    at: datetime
    version: str | None
    selector: str = ""


class Checkpoint(msgspec.Struct, frozen=True):
    """The positions by namespace (``*`` for all); pods that ended before ``since`` make no record."""

    since: datetime
    scopes: dict[str, Position] = {}

    def version(self, scope: str, selector: str) -> str | None:
        """The version from which a watch of a scope goes on; None if it must be listed."""
        position = self.scopes.get(scope)
        return position.version if position is not None and position.selector == selector else None

    def known_until(self, *scopes: str) -> datetime:
        """The last instant at which everything in one of these scopes was known."""
        return max((self.scopes[scope].at for scope in scopes if scope in self.scopes), default=self.since)

    def moved(self, scope: str, position: Position, kept: Collection[str]) -> "Checkpoint":
        """With a scope read so far, and without scopes that are not among the kept ones."""
        others = {name: place for name, place in self.scopes.items() if name in kept}
        return Checkpoint(self.since, {**others, scope: position})


class RunningPod(msgspec.Struct, frozen=True):
    """A pod that has started and is not over, with all runs of its containers that were seen.

    ``opened``: it has an open record; ``sighted``: it was there then, None in the state of older versions.
    """

    pod: Pod
    runs: Runs
    opened: bool = False
    sighted: datetime | None = None


class WaitingPod(msgspec.Struct, frozen=True):
    """A pod that is over and waits for its metrics; it is asked about again when it is due."""

    finished: Finished
    since: datetime
    due: datetime
    attempts: int = 0


class TrackedPods:
    """The pods of the state (``context.pending``), and the changes to it that are not durable yet."""

    def __init__(self, pending: Mapping[str, Json]) -> None:
        self.running: Final = _restored(pending, _RUNNING, RunningPod)
        self.waiting: Final = _restored(pending, _WAITING, WaitingPod)
        self._changes: dict[str, Json | None] = {}

    def changes(self) -> Mapping[str, Json | None]:
        """The changes since the last call, for a batch."""
        changes, self._changes = self._changes, {}
        return changes

    def see(self, pod: Pod, at: datetime) -> RunningPod:
        """A pod, there at an instant, with its earlier runs, and with its start if its status was wiped."""
        before = self.running.get(pod.uid)
        if before is None:
            return RunningPod(pod, runs_of(pod, {}), sighted=at)
        if pod.status.start_time is None:
            status = msgspec.structs.replace(pod.status, start_time=before.pod.status.start_time)
            pod = msgspec.structs.replace(pod, status=status)
        return RunningPod(pod, runs_of(pod, before.runs), before.opened, max(at, before.sighted or at))

    def remember(self, running: RunningPod) -> None:
        """Keep a pod that runs; one that has not changed costs nothing."""
        before = self.running.get(running.pod.uid)
        self.running[running.pod.uid] = running
        if before is None or _lasting(before) != _lasting(running):
            self.keep_sightings([running.pod.uid])

    def keep_sightings(self, uids: Collection[str]) -> None:
        """Write down when pods were last there, also of those that have not changed."""
        for uid in self.running.keys() & uids:
            self._changes[_RUNNING + uid] = msgspec.to_builtins(self.running[uid])

    def forget(self, uid: str) -> None:
        """Forget a pod that runs no more."""
        if self.running.pop(uid, None) is not None:
            self._changes[_RUNNING + uid] = None

    def wait(self, waiting: WaitingPod) -> None:
        """Keep a pod that waits for metrics."""
        uid = waiting.finished.pod.uid
        self.waiting[uid] = waiting
        self._changes[_WAITING + uid] = msgspec.to_builtins(waiting)

    def settle(self, uid: str) -> None:
        """Forget a pod whose waiting is over."""
        if self.waiting.pop(uid, None) is not None:
            self._changes[_WAITING + uid] = None


def _lasting(running: RunningPod) -> RunningPod:
    """A pod without versions and the times at which the kubelet wrote, which change all the time."""
    metadata = msgspec.structs.replace(running.pod.metadata, resource_version="", managed_fields=None)
    status = msgspec.structs.replace(running.pod.status, conditions=None)
    pod = msgspec.structs.replace(running.pod, metadata=metadata, status=status)
    return msgspec.structs.replace(running, sighted=None, pod=pod)


def _restored(pending: Mapping[str, Json], prefix: str, shape: Any) -> dict[str, Any]:  # Any: a Struct's type
    return {
        key.removeprefix(prefix): msgspec.convert(value, shape)
        for key, value in pending.items()
        if key.startswith(prefix)
    }
