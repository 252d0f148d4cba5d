"""Follow the pods of each namespace across runs, and convert their events to batches.

The first run lists all pods in pages. Each later run opens a watch at the version at which the last one ended, and ends
when no more events arrive, so that it has an end, a report and a checkpoint. Namespaces are watched concurrently. If a
version is too old (410), as after a restart of the API server, or newer than the cluster's, as after a restore of etcd,
pods are listed again.

The history of each running pod (runs of its containers, sizes, claims) is saved with each batch, in the same
transaction as the records and the position.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
import msgspec
from anyio import to_thread

from auditord_builtin.kubernetes.amounts import change_size, observe_size
from auditord_builtin.kubernetes.claims import FoundClaims, claims_of, find_problem, read_claims
from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.conversion import History, PodToConvert, convert_pod, determine_end, source_id
from auditord_builtin.kubernetes.pods import KUBELET, RESIZE, Pod, decode_pod, if_known, runs_of
from auditord_builtin.kubernetes.reading import (
    ALL,
    Cluster,
    Limits,
    PodEvent,
    WatchEnd,
    WatchResult,
    follow,
    pages,
)
from auditord_hookspecs import AuditordError, Batch, CollectorContext, InvalidRecord, Quarantined, Window
from auditord_hookspecs.outcomes import Converted, Outcomes, Skipped, restore

PAGE_SIZE: Final = 500
"""The number of pods that one request reads and one batch stores."""

QUIET: Final = timedelta(seconds=2)
"""A run ends after this long without an event; the next run reads later events."""

_RUNNING: Final = "pod/"
_WAITING: Final = "metrics/"

Json = Any  # Any: JSON


class Position(msgspec.Struct, frozen=True):
    """The position in one scope.

    Args:
        at: all events before this time are known.
        version: the resource version from which a watch continues; None if it has expired, so that the scope must be
            listed.
        selector: the label selectors of the last reading. If they change, the scope must be listed.
    """

    at: datetime
    version: str | None
    selector: str = ""


class Checkpoint(msgspec.Struct, frozen=True):
    """The position by namespace (``*`` for all). Pods that ended before ``since`` make no record."""

    since: datetime
    scopes: dict[str, Position] = {}

    def version(self, scope: str, selector: str) -> str | None:
        """Return the version from which a watch of a scope continues; None if the scope must be listed."""
        position = self.scopes.get(scope)
        return position.version if position is not None and position.selector == selector else None

    def latest_known(self, *scopes: str) -> datetime:
        """Return the latest of the times until which these scopes are known."""
        return max((self.scopes[scope].at for scope in scopes if scope in self.scopes), default=self.since)

    def move(self, scope: str, position: Position, kept: Collection[str]) -> "Checkpoint":
        """Return a copy with a scope's new position, and without scopes that are not in ``kept``."""
        others = {name: place for name, place in self.scopes.items() if name in kept}
        return Checkpoint(self.since, {**others, scope: position})


class RunningPod(msgspec.Struct, frozen=True):
    """A pod that has started and not ended, with all that was observed of it.

    ``opened`` is true if open records are on and one was attempted. ``sighted`` is the last time at which the pod is
    known to have existed.
    """

    pod: Pod
    history: History
    sighted: datetime
    opened: bool = False


class WaitingPod(msgspec.Struct, frozen=True):
    """A pod that has ended and waits for its metrics, which are queried again at ``due``."""

    finished: PodToConvert
    since: datetime
    due: datetime
    attempts: int = 0


class TrackedPods:
    """The pods in ``context.pending``, and the changes that are not saved yet."""

    def __init__(self, pending: Mapping[str, Json]) -> None:
        self.running: Final = _restore(pending, _RUNNING, RunningPod)
        self.waiting: Final = _restore(pending, _WAITING, WaitingPod)
        self._changes: dict[str, Json | None] = {}

    def changes(self) -> Mapping[str, Json | None]:
        """Return, and reset, the changes to save with the next batch."""
        changes, self._changes = self._changes, {}
        return changes

    def see(
        self, pod: Pod, at: datetime, *, resized: datetime | None = None, claims: FoundClaims | None = None
    ) -> RunningPod:
        """Merge a pod with its history, and with its earlier start if the status was wiped.

        Args:
            pod: the pod.
            at: a time at which it existed.
            resized: when its resources changed, if they did; default: ``at``.
            claims: the claims that were read, of this and other pods.
        """
        before = self.running.get(pod.uid)
        history = History() if before is None else before.history
        if before is not None:
            at = max(at, before.sighted)
            if pod.status.start_time is None:
                status = msgspec.structs.replace(pod.status, start_time=before.pod.status.start_time)
                pod = msgspec.structs.replace(pod, status=status)
        sizes = observe_size(pod, history.sizes, before and before.pod, resized or at)
        merged = History(runs_of(pod, history.runs), sizes, {**history.claims, **claims_of(pod, claims or {})})
        return RunningPod(pod, merged, at, before is not None and before.opened)

    def remember(self, running: RunningPod) -> None:
        """Update a running pod. It is only saved if it has changed."""
        before = self.running.get(running.pod.uid)
        self.running[running.pod.uid] = running
        if before is None or _lasting(before) != _lasting(running):
            self.keep_sightings([running.pod.uid])
        if before is None or before.history.claims != running.history.claims:
            self._share(running, min([running.sighted, *(size.since for size in running.history.sizes)]))

    def _share(self, changed: RunningPod, at: datetime) -> None:
        """Share the claims of a pod that began or ended at an instant equally among all running pods that use them."""
        for key, claim in changed.history.claims.items():
            if not claim.shared:
                continue
            users = [each for each in self.running.values() if key in each.history.claims and each.history.sizes]
            starts = sorted(each.history.sizes[0].since for each in users)
            for running in users:
                sizes = running.history.sizes
                first = max(at, sizes[-1].since)
                for since in (first, *(start for start in starts if start > first)):
                    sharers = {**sizes[-1].sharers, key: bisect_right(starts, since)}
                    size = msgspec.structs.replace(sizes[-1], since=since, sharers=sharers)
                    sizes = change_size(sizes, size)
                history = msgspec.structs.replace(running.history, sizes=sizes)
                self.running[running.pod.uid] = msgspec.structs.replace(running, history=history)
                self.keep_sightings([running.pod.uid])

    def keep_sightings(self, uids: Collection[str]) -> None:
        """Save when pods were last seen, even if they have not changed."""
        for uid in self.running.keys() & uids:
            self._changes[_RUNNING + uid] = msgspec.to_builtins(self.running[uid])

    def forget(self, uid: str, at: datetime) -> None:
        """Remove a pod that is no longer running since an instant."""
        if (running := self.running.pop(uid, None)) is not None:
            self._changes[_RUNNING + uid] = None
            self._share(running, at)

    def wait(self, waiting: WaitingPod) -> None:
        """Add or update a pod that waits for metrics."""
        uid = waiting.finished.pod.uid
        self.waiting[uid] = waiting
        self._changes[_WAITING + uid] = msgspec.to_builtins(waiting)

    def settle(self, uid: str) -> None:
        """Remove a pod that no longer waits."""
        if self.waiting.pop(uid, None) is not None:
            self._changes[_WAITING + uid] = None


def _lasting(running: RunningPod) -> tuple[Pod, History, bool]:
    """Return the parts of a pod that do not change all the time, for comparison."""
    metadata = msgspec.structs.replace(running.pod.metadata, resource_version="", managed_fields=None)
    status = msgspec.structs.replace(running.pod.status, conditions=None)
    pod = msgspec.structs.replace(running.pod, metadata=metadata, status=status)
    return pod, running.history, running.opened


def _restore(pending: Mapping[str, Json], prefix: str, shape: Any) -> dict[str, Any]:  # Any: a Struct's type
    return {
        key.removeprefix(prefix): msgspec.convert(value, shape)
        for key, value in pending.items()
        if key.startswith(prefix)
    }


REMEMBERED: Final = timedelta(days=30)
"""The time for which a processed pod is remembered. After that it may be sent again, which is a no-op."""


class Draft:
    """A batch that is being built.

    Args:
        tracked: the pods from earlier runs, which are updated.
        done: the uids of pods that have been processed.
        period: pods that ended outside it make no record, unless they were seen running.
    """

    def __init__(
        self, config: KubernetesConfig, tracked: TrackedPods, done: Collection[str], now: datetime, period: Window
    ) -> None:
        self.outcomes: Final = Outcomes()
        self.sighted = period.start
        """All events before this time are known, according to the events of this batch."""
        self.complaints: Final = list[str]()
        """Reasons why running pods got no open record. At the pod's end, the same problem sends it to quarantine."""
        self.estimated: Final = list[str]()
        """Pods whose size was not observed for a while, so that their totals are estimates."""
        self._config = config
        self._tracked = tracked
        self._done = set(done)
        self._now = now
        self._period = period
        self._seen = dict[str, datetime]()

    def batch(self, checkpoint: Json = None) -> Batch:
        """Return the batch, including the unsaved changes of the tracked pods."""
        return self.outcomes.batch(self._seen, checkpoint, self._tracked.changes())

    def take(
        self,
        events: Iterable[tuple[PodEvent, Pod | InvalidRecord]],
        claims: FoundClaims,
        listed: datetime | None = None,
    ) -> None:
        """Apply events in order.

        Args:
            events: each with its pod, or the reason why it cannot be read.
            claims: the claims of their pods.
            listed: when the list was taken, if the events come from one; all its pods existed then. Without a list, an
                event can be old, so a pod is only known to have existed when it was last written.
        """
        for event, pod in events:
            if isinstance(pod, InvalidRecord):  # a running pod is read again when it changes
                raw = {"pod": msgspec.json.decode(event.raw), "gone": event.gone, "seen": self._now.isoformat()}
                self.outcomes.add(Quarantined(_name(raw["pod"]), raw, str(pod)))
                continue
            at = listed or min(self._now, pod.noted_at or self._period.start)
            self.sighted = max(self.sighted, at)
            if pod.uid in self._done:
                continue
            before = self._tracked.running.get(pod.uid)
            changed = _estimate_resize(pod, before, self._now, listed)
            running = self._tracked.see(pod, at, resized=changed, claims=claims)
            if _is_estimated(running, before, listed):
                self.estimated.append(source_id(pod))
            if event.gone or pod.terminal:
                self._finish(running, self._now)
            elif running.pod.status.start_time is not None:
                if self._config.open_records and not running.opened:
                    to_convert = PodToConvert(running.pod, running.history, None, running.pod.status.phase)
                    made = convert_pod(self._config, to_convert)
                    if isinstance(made, Converted):
                        self.outcomes.add(made)
                    else:
                        self.complaints.append(f"{made.source_id}: no open record: {made.reason}")
                    running = msgspec.structs.replace(running, opened=True)
                self._tracked.remember(running)

    def warn(self, context: CollectorContext) -> None:
        """Log what the records of the draft lack."""
        for complaint in self.complaints:
            context.log.warning("%s", complaint)
        if self.estimated:
            text = "%d pods were resized, or shared claims, while not watched, such as %s; their totals are estimates"
            context.log.warning(text, len(self.estimated), self.estimated[0])

    def close(self, running: RunningPod, known_until: datetime) -> None:
        """Close a pod that has vanished, at ``known_until`` or when it was last seen, whichever is later.

        A time in the future is from a clock that was ahead.
        """
        running = self._tracked.running.get(running.pod.uid, running)  # its share of a claim may have changed
        if running.pod.uid not in self._done:
            self._finish(running, min(max(known_until, running.sighted), self._now))

    def emit(self, finished: PodToConvert) -> None:
        """Convert a pod and add its record to the batch."""
        self.outcomes.add(convert_pod(self._config, finished))

    def _finish(self, running: RunningPod, at: datetime) -> None:
        uid = running.pod.uid
        known = uid in self._tracked.running
        self._done.add(uid)
        self._seen[uid] = self._now + REMEMBERED
        concluded = determine_end(self._config, running.pod, running.history, at)
        self._tracked.forget(uid, at if isinstance(concluded, Skipped) else concluded.stop or at)
        if isinstance(concluded, Skipped):
            self.outcomes.add(concluded)
        elif not known and not self._within(concluded.stop):
            self.outcomes.add(Skipped("ended outside the period"))
        elif self._config.prometheus is None:
            self.emit(concluded)
        else:
            self._tracked.wait(WaitingPod(concluded, since=self._now, due=self._now))

    def _within(self, stop: datetime | None) -> bool:
        return stop is None or self._period.start <= stop < self._period.stop


def _estimate_resize(pod: Pod, before: RunningPod | None, now: datetime, listed: datetime | None) -> datetime:
    """Return when the resources of a pod changed, if this version is the first with the change.

    An event comes with each version, so the change is the last write. A list shows the sum of all changes: the last
    request to resize or else the kubelet's last write is the best estimate, if it is not older than the last sighting.
    """
    written = {
        name: moment
        for each in pod.metadata.managed_fields or ()
        for name in (each.manager, each.subresource)
        if (moment := if_known(each.time)) is not None
    }
    if listed is None:
        return min(now, max(written.values(), default=now))
    last = before.sighted if before is not None else None
    estimates = [written[name] for name in (RESIZE, KUBELET) if name in written]
    return next((each for each in estimates if (last is None or last < each) and each <= listed), listed)


def _is_estimated(running: RunningPod, before: RunningPod | None, listed: datetime | None) -> bool:
    """Return whether a pod was resized, or shared a claim, while it was not observed or before it was first seen."""
    if before is not None and listed is None:
        return False
    if before is None and running.pod.terminal and any(each.shared for each in running.history.claims.values()):
        return True
    since = running.pod.status.start_time if before is None else before.sighted
    resizes = [each.time for each in running.pod.metadata.managed_fields or () if each.subresource == RESIZE]
    grown = before is not None and len(running.history.sizes) > len(before.history.sizes)
    return grown or any(moment is not None and since is not None and moment > since for moment in resizes)


def read_pods(events: Sequence[PodEvent]) -> Sequence[tuple[PodEvent, Pod | InvalidRecord]]:
    """Decode the pods. For a pod that cannot be decoded, return the error instead."""
    pods: list[tuple[PodEvent, Pod | InvalidRecord]] = []
    for event in events:
        try:
            pods.append((event, decode_pod(event.raw)))
        except InvalidRecord as error:
            pods.append((event, error))
    return pods


def _name(pod: Json) -> str:
    try:
        found = msgspec.convert(pod["metadata"], dict[str, Json])
    except (msgspec.ValidationError, TypeError, LookupError):
        found = {}
    return "/".join(str(found.get(name, "?"))[:253] for name in ("namespace", "name", "uid"))


async def read_missing_claims(
    cluster: Cluster, tracked: TrackedPods, read: Iterable[tuple[PodEvent, Pod | InvalidRecord]], done: Collection[str]
) -> FoundClaims:
    """Read the claims of pods that have started, unless they are known.

    Raises:
        AuditordError: the API server does not answer.
    """
    lacking = dict[str, Pod]()
    for _, pod in read:
        if isinstance(pod, Pod) and pod.status.start_time is not None and pod.uid not in done:
            before = tracked.running.get(pod.uid)
            if find_problem(pod, {} if before is None else before.history.claims) is not None:
                lacking[pod.uid] = pod
    return await read_claims(cluster, lacking.values()) if lacking else {}


_NO_END: Final = datetime.max.replace(tzinfo=UTC)

_LISTS: Final = 3
"""The maximum number of lists of a namespace per run. If its watch expires again, the next run continues."""


class Run:
    """One run over all scopes."""

    def __init__(
        self, config: KubernetesConfig, context: CollectorContext, cluster: Cluster, tracked: TrackedPods
    ) -> None:
        self._config = config
        self._context = context
        self._cluster = cluster
        self._tracked = tracked
        first = {"since": config.earliest_datetime or context.now()}
        self._before = restore(context.checkpoint or first, Checkpoint)
        self._checkpoint = self._before
        self._lists = Counter[str]()
        self._faults: dict[str, AuditordError] = {}

    async def batches(self) -> AsyncIterator[Batch]:
        """Yield batches until no more events arrive, or until ``watch_for`` is over.

        Raises:
            AuditordError: a scope could not be read. The others were.
        """
        running, scopes = self._tracked.running.items(), self._config.scopes
        others = [uid for uid, pod in running if not any(_within(pod, scope) for scope in scopes)]
        for uid in others:
            self._tracked.forget(uid, self._context.now())
        if others:
            yield Batch(skipped={"namespace is not collected any more": len(others)}, pending=self._tracked.changes())
        deadline = anyio.current_time() + self._config.watch_for.total_seconds()
        active: Collection[str] = self._config.scopes
        while active:
            for scope in active:
                if self._checkpoint.version(scope, self._config.selector) is None:
                    async for batch in self._list(scope):
                        yield batch
            results = await self._watch([scope for scope in active if scope not in self._faults])
            for scope, result in results.items():
                draft, _ = await self._draft(result.events)
                latest = max(self._checkpoint.latest_known(scope), draft.sighted, result.known_until or draft.sighted)
                at = min(latest, self._context.now())  # an earlier time may be from a clock that was ahead
                version = None if result.ended is WatchEnd.EXPIRED else result.version
                yield self._commit(draft, scope, Position(at, version, self._config.selector))
            more = {name for name, each in results.items() if each.ended in {WatchEnd.MORE, WatchEnd.EXPIRED}}
            active = more if anyio.current_time() < deadline else ()
        if self._faults:
            raise AuditordError("; ".join(str(error) for error in self._faults.values()))

    async def _draft(self, events: Sequence[PodEvent], listed: datetime | None = None) -> tuple[Draft, Collection[str]]:
        """Return a draft of the events, or of the listed pods, and the uids of its pods."""
        # In a thread, since hundreds of pods take a while, and the daemon must answer requests meanwhile.
        read = await to_thread.run_sync(read_pods, events)
        uids = {pod.uid for _, pod in read if isinstance(pod, Pod)}
        done = await self._context.find_seen(uids)
        claims = await read_missing_claims(self._cluster, self._tracked, read, done)
        draft = Draft(self._config, self._tracked, done, self._context.now(), Window(self._checkpoint.since, _NO_END))
        await to_thread.run_sync(draft.take, read, claims, listed)
        draft.warn(self._context)
        return draft, uids

    def _commit(self, draft: Draft, scope: str, position: Position) -> Batch:
        self._checkpoint = self._checkpoint.move(scope, position, self._config.scopes)
        return draft.batch(msgspec.to_builtins(self._checkpoint))

    async def _list(self, scope: str) -> AsyncIterator[Batch]:
        self._lists[scope] += 1
        if self._lists[scope] > _LISTS:
            text = f"{scope}: the list of pods keeps expiring before it can be watched; the next run tries again"
            self._faults[scope] = AuditordError(text)
            return
        present, listed, version = set[str](), self._context.now(), ""
        try:
            async for page in pages(self._cluster, scope, PAGE_SIZE):
                draft, uids = await self._draft(page.pods, listed)  # all pages show the state at the first request
                if page.first:
                    present.clear()
                present.update(uids)
                self._tracked.keep_sightings(uids)  # if the rest fails, no checkpoint records that these pods existed
                yield draft.batch()
                version = page.version
            yield await self._close_vanished(scope, present, Position(listed, version, self._config.selector))
        except AuditordError as error:
            self._faults[scope] = error

    async def _close_vanished(self, scope: str, present: Collection[str], position: Position) -> Batch:
        """Close the pods that were running but are missing in the list, since their end was not observed."""
        vanished = [pod for uid, pod in self._tracked.running.items() if uid not in present and _within(pod, scope)]
        before = self._before.scopes.get(scope)
        reselected = before is not None and before.selector != self._config.selector
        unmatched: list[str] = []
        for pod in vanished if reselected else ():  # the API server may fail here, so nothing is closed before
            metadata = pod.pod.metadata
            if await self._cluster.uid_of(metadata.namespace, metadata.name) == metadata.uid:
                unmatched.append(pod.pod.uid)  # it still exists, so the new selectors do not match it
        for uid in unmatched:
            self._tracked.forget(uid, self._context.now())
        draft, _ = await self._draft([])
        ended = [pod for pod in vanished if pod.pod.uid not in unmatched]
        for running in ended:
            # ALL and the previous checkpoint also cover a scope that is new in the configuration.
            namespace = running.pod.metadata.namespace
            draft.close(running, max(each.latest_known(namespace, ALL) for each in (self._before, self._checkpoint)))
        if ended:
            text = "%d pods vanished between two runs; their records end when they were last seen"
            self._context.log.warning(text, len(ended))
        return self._commit(draft, scope, position)

    async def _watch(self, scopes: Sequence[str]) -> Mapping[str, WatchResult]:
        """Read the watches of all scopes concurrently. A failing watch does not affect the others."""
        found = dict[str, WatchResult]()
        config, now = self._config, self._context.now
        limits = Limits(PAGE_SIZE, QUIET, config.watch_for, pause=QUIET / 10)

        async def read(scope: str, version: str) -> None:
            try:
                found[scope] = await follow(self._cluster, scope, version, limits, now)
            except AuditordError as error:
                self._faults[scope] = error

        async with anyio.create_task_group() as group:
            for scope in scopes:
                group.start_soon(read, scope, self._checkpoint.version(scope, self._config.selector) or "")
        return found


def _within(running: RunningPod, scope: str) -> bool:
    return scope in {ALL, running.pod.metadata.namespace}
