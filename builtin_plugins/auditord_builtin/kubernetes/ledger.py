"""What a collector remembers of pods between runs: those that run, and those that wait for their figures."""

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


class Running(msgspec.Struct, frozen=True):
    """A pod that has started and is not over.

    Args:
        pod: the last that was seen of it.
        runs: of its containers, all that were seen.
        opened: whether it has an open record.
        sighted: when it was last known to be there; None in what older versions kept.
    """

    pod: Pod
    runs: Runs
    opened: bool = False
    sighted: datetime | None = None


class Waiting(msgspec.Struct, frozen=True):
    """A pod that is over and waits for its figures.

    Args:
        finished: it.
        since: when the waiting began.
        due: when to ask again.
        attempts: how many answers came without a figure.
    """

    finished: Finished
    since: datetime
    due: datetime
    attempts: int = 0


class Ledger:
    """The memory, and the changes to it that are not durable yet.

    Args:
        carried: what was kept (``context.pending``).
    """

    def __init__(self, carried: Mapping[str, Json]) -> None:
        self.running: Final = _restored(carried, _RUNNING, Running)
        self.waiting: Final = _restored(carried, _WAITING, Waiting)
        self._changes: dict[str, Json | None] = {}

    def changes(self) -> Mapping[str, Json | None]:
        """What has changed since the last call, for a batch."""
        changes, self._changes = self._changes, {}
        return changes

    def see(self, pod: Pod, at: datetime) -> Running:
        """A pod together with what was known of it: earlier runs, and the start if its status was wiped.

        Args:
            pod: as it is.
            at: an instant at which it was there.
        """
        before = self.running.get(pod.uid)
        if before is None:
            return Running(pod, runs_of(pod, {}), sighted=at)
        if pod.status.start_time is None:
            status = msgspec.structs.replace(pod.status, start_time=before.pod.status.start_time)
            pod = msgspec.structs.replace(pod, status=status)
        return Running(pod, runs_of(pod, before.runs), before.opened, max(at, before.sighted or at))

    def remember(self, running: Running) -> None:
        """Keep a pod that runs; what has not changed costs nothing."""
        changed = not _same(self.running.get(running.pod.uid), running)
        self.running[running.pod.uid] = running
        if changed:
            self._changes[_RUNNING + running.pod.uid] = msgspec.to_builtins(running)

    def keep_sightings(self, uids: Collection[str]) -> None:
        """Write down when pods were last there, also of those that have not changed."""
        for uid in self.running.keys() & uids:
            self._changes[_RUNNING + uid] = msgspec.to_builtins(self.running[uid])

    def forget(self, uid: str) -> None:
        """Forget a pod that runs no more."""
        if self.running.pop(uid, None) is not None:
            self._changes[_RUNNING + uid] = None

    def wait(self, waiting: Waiting) -> None:
        """Keep a pod that waits for figures."""
        uid = waiting.finished.pod.uid
        self.waiting[uid] = waiting
        self._changes[_WAITING + uid] = msgspec.to_builtins(waiting)

    def settle(self, uid: str) -> None:
        """Forget a pod whose waiting is over."""
        if self.waiting.pop(uid, None) is not None:
            self._changes[_WAITING + uid] = None


def _same(before: Running | None, after: Running) -> bool:
    """Whether they say the same: versions, and times at which the kubelet wrote, change with every breath."""
    return before is not None and _still(before) == _still(after)


def _still(running: Running) -> Running:
    metadata = msgspec.structs.replace(running.pod.metadata, resource_version="", managed_fields=None)
    status = msgspec.structs.replace(running.pod.status, conditions=None)
    pod = msgspec.structs.replace(running.pod, metadata=metadata, status=status)
    return msgspec.structs.replace(running, sighted=None, pod=pod)


def _restored(carried: Mapping[str, Json], prefix: str, shape: Any) -> dict[str, Any]:  # Any: a Struct's type
    return {
        key.removeprefix(prefix): msgspec.convert(value, shape)
        for key, value in carried.items()
        if key.startswith(prefix)
    }
