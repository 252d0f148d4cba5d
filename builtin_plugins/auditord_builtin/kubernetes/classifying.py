"""From events of pods to a batch."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.conversion import Finished, conclude, convert_finished
from auditord_builtin.kubernetes.pods import Pod, decode_pod
from auditord_builtin.kubernetes.reading import Happening
from auditord_builtin.kubernetes.tracking import Json, RunningPod, TrackedPods, WaitingPod
from auditord_hookspecs import Batch, InvalidRecord, Quarantined, Window
from auditord_hookspecs.outcomes import Converted, Outcomes, Skipped

REMEMBERED: Final = timedelta(days=30)
"""The memory of a pod that has been dealt with; after that it may be sent again, which changes nothing."""


class Draft:
    """A batch in the making.

    Args:
        config: how pods become records.
        tracked: the pods known from before.
        done: the pods that have been dealt with.
        now: the present instant.
        period: pods that ended before or after make no record, unless they were seen running.
    """

    def __init__(
        self, config: KubernetesConfig, tracked: TrackedPods, done: Collection[str], now: datetime, period: Window
    ) -> None:
        self.outcomes: Final = Outcomes()
        self.sighted = period.start
        """Everything that happened before is known, as far as this batch knows."""
        self.complaints: Final = list[str]()
        """Faults of running pods, which have no open record; the same at their ends goes to quarantine."""
        self._config = config
        self._tracked = tracked
        self._done = set(done)
        self._now = now
        self._period = period
        self._seen = dict[str, datetime]()

    def batch(self, checkpoint: Json = None) -> Batch:
        """The batch of all, with the changes of the tracked pods."""
        return self.outcomes.batch(self._seen, checkpoint, self._tracked.changes())

    def take(self, events: Iterable[tuple[Happening, Pod | InvalidRecord]], listed: datetime | None = None) -> None:
        """Take in what happened, in order.

        Args:
            events: each with its pod, or why it cannot be read.
            listed: when they were all there, if this comes from a list. Events may be old: then a pod was there when it
                was last written to, and so was every pod whose end comes later.
        """
        for event, pod in events:
            if isinstance(pod, InvalidRecord):  # one that is still running comes again when it changes
                raw = {"pod": msgspec.json.decode(event.raw), "gone": event.gone, "seen": self._now.isoformat()}
                self.outcomes.add(Quarantined(_name(raw["pod"]), raw, str(pod)))
                continue
            at = listed or min(self._now, pod.noted_at or self._period.start)
            self.sighted = max(self.sighted, at)
            if pod.uid not in self._done:
                self._classify(pod, at, gone=event.gone)

    def close(self, running: RunningPod, known_until: datetime) -> None:
        """Take in that a pod has vanished: it was there when it was last seen, or when all were known to be."""
        if running.pod.uid not in self._done:
            self._finish(running, max(known_until, running.sighted or known_until))

    def emit(self, finished: Finished) -> None:
        """Make the record of a pod."""
        self.outcomes.add(convert_finished(self._config, finished))

    def _classify(self, pod: Pod, at: datetime, *, gone: bool) -> None:
        running = self._tracked.see(pod, at)
        if gone or running.pod.terminal:
            self._finish(running, self._now)
        elif running.pod.status.start_time is not None:
            self._tracked.remember(self._opened(running))

    def _finish(self, running: RunningPod, at: datetime) -> None:
        uid = running.pod.uid
        known = uid in self._tracked.running
        self._done.add(uid)
        self._seen[uid] = self._now + REMEMBERED
        self._tracked.forget(uid)
        concluded = conclude(self._config, running.pod, running.runs, at)
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

    def _opened(self, running: RunningPod) -> RunningPod:
        if running.opened or not self._config.open_records:
            return running
        made = convert_finished(self._config, Finished(running.pod, running.runs, None, running.pod.status.phase))
        if isinstance(made, Converted):
            self.outcomes.add(made)
        else:
            self.complaints.append(f"{made.source_id}: no open record: {made.reason}")
        return msgspec.structs.replace(running, opened=True)


def read_pods(happenings: Sequence[Happening]) -> Sequence[tuple[Happening, Pod | InvalidRecord]]:
    """The pods, each as it is or with the reason why it cannot be read."""
    return [(happening, _read(happening)) for happening in happenings]


def _read(happening: Happening) -> Pod | InvalidRecord:
    try:
        return decode_pod(happening.raw)
    except InvalidRecord as error:
        return error


def _name(pod: Json) -> str:
    try:
        found = msgspec.convert(pod["metadata"], dict[str, Json])
    except (msgspec.ValidationError, TypeError, LookupError):
        found = {}
    return "/".join(str(found.get(name, "?"))[:253] for name in ("namespace", "name", "uid"))
