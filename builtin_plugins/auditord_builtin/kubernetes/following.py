"""A run: lists where it must, then a stretch of each watch after the other, until nothing happens any more.

A connection lasts for a stretch and never while a batch is being kept. Nothing is missed between two of them, nor
between two runs: a watch begins at the version at which the last one ended, and the server hands over what happened
since.
"""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import anyio
import msgspec
from anyio import to_thread

from auditord_builtin.kubernetes.classifying import Draft, read_pods
from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.connection import ALL, Cluster
from auditord_builtin.kubernetes.pods import Pod
from auditord_builtin.kubernetes.reading import After, Happening, Limits, Page, Stretch, follow, pages
from auditord_builtin.kubernetes.tracking import Checkpoint, Position, RunningPod, TrackedPods
from auditord_hookspecs import AuditordError, Batch, CollectorContext, Window
from auditord_hookspecs.outcomes import restore

_NO_END: Final = datetime.max.replace(tzinfo=UTC)

_LISTS: Final = 3
"""The most lists of a namespace in a run: one whose watch expires again and again is left to the next run."""


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
        """All that happens until nothing happens any more, or the time is over.

        Raises:
            AuditordError: a scope could not be read; the others were.
        """
        if others := self._forget_others():
            yield Batch(skipped={"namespace is not collected any more": others}, pending=self._tracked.changes())
        deadline = anyio.current_time() + self._config.watch_for.total_seconds()
        active: Collection[str] = self._config.scopes
        while active:
            for scope in active:
                if self._checkpoint.version(scope, self._config.selector) is None:
                    async for batch in self._listed(scope):
                        yield batch
            stretches = await self._stretches([scope for scope in active if scope not in self._faults])
            for scope, stretch in stretches.items():
                yield await self._taken(scope, stretch)
            more = {name for name, each in stretches.items() if each.after in {After.MORE, After.EXPIRED}}
            active = more if anyio.current_time() < deadline else ()
        if self._faults:
            raise AuditordError("; ".join(str(error) for error in self._faults.values()))

    def _forget_others(self) -> int:
        """Forget the pods of namespaces that are not collected any more."""
        running = self._tracked.running.items()
        others = [uid for uid, one in running if not any(_within(one, scope) for scope in self._config.scopes)]
        for uid in others:
            self._tracked.forget(uid)
        return len(others)

    async def _draft(
        self, happenings: Sequence[Happening], listed: datetime | None = None
    ) -> tuple[Draft, Collection[str]]:
        """A batch of what happened, or of what there was when it was listed, and the uids that it is about."""
        # In a thread: hundreds of pods take a while, in which the daemon has requests to answer.
        read = await to_thread.run_sync(read_pods, happenings)
        uids = {pod.uid for _, pod in read if isinstance(pod, Pod)}
        done = await self._context.seen(uids)
        draft = Draft(self._config, self._tracked, done, self._context.now(), Window(self._checkpoint.since, _NO_END))
        await to_thread.run_sync(draft.take, read, listed)
        return draft, uids

    def _kept(self, draft: Draft, scope: str, position: Position | None) -> Batch:
        for complaint in draft.complaints:
            self._context.log.warning("%s", complaint)
        if position is None:
            return draft.batch()
        self._checkpoint = self._checkpoint.moved(scope, position, self._config.scopes)
        return draft.batch(msgspec.to_builtins(self._checkpoint))

    async def _listed(self, scope: str) -> AsyncIterator[Batch]:
        self._lists[scope] += 1
        if self._lists[scope] > _LISTS:
            text = f"{scope}: what the list says is too old to go on from; the next run tries again"
            self._faults[scope] = AuditordError(text)
            return
        present, listed = set[str](), self._context.now()
        try:
            async for page in pages(self._cluster, scope, self._config.page_size):
                yield await self._page(scope, page, present, listed)
        except AuditordError as error:
            self._faults[scope] = error

    async def _page(self, scope: str, page: Page, present: set[str], listed: datetime) -> Batch:
        """A page of a list, which shows all pages as of the instant at which it was begun."""
        draft, uids = await self._draft(page.pods, listed)
        if page.first:
            present.clear()
        present.update(uids)
        if not page.last:  # the rest may never come, and so no checkpoint that says that these were there
            self._tracked.keep_sightings(uids)
            return self._kept(draft, scope, None)
        await self._close_vanished(scope, draft, present)
        return self._kept(draft, scope, Position(listed, page.version, self._config.selector))

    async def _close_vanished(self, scope: str, draft: Draft, present: Collection[str]) -> None:
        """Pods that ran when they were last seen and are not there now: nobody saw their end."""
        gone = [one for uid, one in self._tracked.running.items() if uid not in present and _within(one, scope)]
        position, closed = self._before.scopes.get(scope), 0
        reselected = position is not None and position.selector != self._config.selector
        for running in gone:
            metadata = running.pod.metadata
            if reselected and await self._cluster.uid_of(metadata.namespace, metadata.name) == metadata.uid:
                self._tracked.forget(metadata.uid)  # it is only not selected any more
                continue
            # Also if the scope is new, and the namespace was a part of another one.
            known = (each.known_until(metadata.namespace, ALL) for each in (self._before, self._checkpoint))
            draft.close(running, max(known))
            closed += 1
        if closed:
            text = "%d pods vanished while nobody watched; they count until they were last known to be there"
            self._context.log.warning(text, closed)

    async def _stretches(self, scopes: Sequence[str]) -> Mapping[str, Stretch]:
        """A stretch of each watch, all at the same time; one that fails does not disturb the others."""
        found = dict[str, Stretch]()
        config, now = self._config, self._context.now
        limits = Limits(config.page_size, config.quiet, config.watch_for, pause=config.quiet / 10)

        async def read(scope: str, version: str) -> None:
            try:
                found[scope] = await follow(self._cluster, scope, version, limits, now)
            except AuditordError as error:
                self._faults[scope] = error

        async with anyio.create_task_group() as group:
            for scope in scopes:
                group.start_soon(read, scope, self._checkpoint.version(scope, self._config.selector) or "")
        return found

    async def _taken(self, scope: str, stretch: Stretch) -> Batch:
        draft, _ = await self._draft(stretch.happenings)
        at = max(self._checkpoint.known_until(scope), draft.sighted, stretch.known_until or draft.sighted)
        version = None if stretch.after is After.EXPIRED else stretch.version
        return self._kept(draft, scope, Position(at, version, self._config.selector))


def _within(running: RunningPod, scope: str) -> bool:
    return scope in {ALL, running.pod.metadata.namespace}
