"""From what happened to pods to a batch."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.conversion import Converted, Finished, Skipped, conclude, convert_finished
from auditord_builtin.kubernetes.ledger import Json, Ledger, Running, Waiting
from auditord_builtin.kubernetes.pods import Pod, decode_pod
from auditord_builtin.kubernetes.reading import Happening
from auditord_hookspecs import Batch, InvalidRecord, Quarantined, Record, Window

REMEMBERED: Final = timedelta(days=30)
"""How long it is known that a pod has been dealt with; after that it may be sent again, which changes nothing."""


class Draft:
    """A batch in the making.

    Args:
        config: how pods become records.
        ledger: what is known of pods from before.
        done: the pods that have been dealt with.
        now: the present instant.
        period: pods that ended before or after are none of our business, unless they were seen running.
    """

    def __init__(
        self,
        config: KubernetesConfig,
        ledger: Ledger,
        done: Collection[str],
        now: datetime,
        period: Window,
    ) -> None:
        self.remarks: Final = list[str]()
        self.sighted = period.start
        """Everything that happened before is known, as far as this batch can tell."""
        self._config = config
        self._ledger = ledger
        self._done = set(done)
        self._now = now
        self._period = period
        self._records = list[Record]()
        self._quarantined = list[Quarantined]()
        self._skipped = Counter[str]()
        self._seen = dict[str, datetime]()

    def batch(self, checkpoint: Json = None) -> Batch:
        """All of it, with the changes of the ledger."""
        return Batch(
            records=self._records,
            quarantined=self._quarantined,
            skipped=dict(self._skipped),
            checkpoint=checkpoint,
            seen=self._seen,
            pending=self._ledger.changes(),
        )

    def take(self, happenings: Iterable[tuple[Happening, Pod | None]], listed: datetime | None = None) -> None:
        """Take in what happened, in order.

        Args:
            happenings: a pod that is None could not be read.
            listed: when they were all there, if this comes from a list. Events may be old: then a pod was there when it
                was last written to, and so was every pod whose end comes later.
        """
        for happening, pod in happenings:
            if pod is None:
                self._set_aside(happening)
                continue
            at = listed or min(self._now, pod.noted_at or self._period.start)
            self.sighted = max(self.sighted, at)
            if pod.uid not in self._done:
                self._classify(pod, at, gone=happening.gone)

    def close(self, running: Running, known_until: datetime) -> None:
        """Take in that a pod has vanished: it was there when it was last seen, or when all were known to be."""
        if running.pod.uid not in self._done:
            self._finish(running, max(known_until, running.sighted or known_until))

    def emit(self, finished: Finished) -> None:
        """Make the record of a pod."""
        made = convert_finished(self._config, finished)
        if isinstance(made, Quarantined):
            self._quarantined.append(made)
            return
        self._records.append(made.record)
        self.remarks.extend(_remarks(made))

    def _classify(self, pod: Pod, at: datetime, *, gone: bool) -> None:
        running = self._ledger.see(pod, at)
        if gone or running.pod.terminal:
            self._finish(running, self._now)
        elif running.pod.status.start_time is not None:
            self._ledger.remember(self._opened(running))

    def _finish(self, running: Running, at: datetime) -> None:
        uid = running.pod.uid
        known = uid in self._ledger.running
        self._done.add(uid)
        self._seen[uid] = self._now + REMEMBERED
        self._ledger.forget(uid)
        classified = conclude(self._config, running.pod, running.runs, at)
        if isinstance(classified, Finished) and not known and not self._within(classified.stop):
            classified = Skipped("ended outside the period")
        if isinstance(classified, Skipped):
            self._skipped[classified.reason] += 1
        elif self._config.prometheus is None:
            self.emit(classified)
        else:
            self._ledger.wait(Waiting(classified, since=self._now, due=self._now))

    def _within(self, stop: datetime | None) -> bool:
        return stop is None or self._period.start <= stop < self._period.stop

    def _opened(self, running: Running) -> Running:
        if running.opened or not self._config.open_records:
            return running
        made = convert_finished(self._config, Finished(running.pod, running.runs, None, running.pod.status.phase))
        if isinstance(made, Converted):
            self._records.append(made.record)
        else:
            self.remarks.append(f"{made.source_id}: no open record: {made.reason}")
        return msgspec.structs.replace(running, opened=True)

    def _set_aside(self, happening: Happening) -> None:
        """A pod that is still running comes again when it changes; what is the same is kept once."""
        try:
            decode_pod(happening.raw)
        except InvalidRecord as error:
            raw = {"pod": msgspec.json.decode(happening.raw), "gone": happening.gone, "seen": self._now.isoformat()}
            self._quarantined.append(Quarantined(_name(raw["pod"]), raw, str(error)))


def read_pods(happenings: Sequence[Happening]) -> Sequence[tuple[Happening, Pod | None]]:
    """Each with its pod, or None if it cannot be read."""
    return [(happening, _read(happening)) for happening in happenings]


def _read(happening: Happening) -> Pod | None:
    try:
        return decode_pod(happening.raw)
    except InvalidRecord:
        return None


def _remarks(made: Converted) -> Iterable[str]:
    return (f"{made.record.record_id}: {reason}" for reason in made.left_out)


def _name(pod: Json) -> str:
    try:
        found = msgspec.convert(pod["metadata"], dict[str, Json])
    except (msgspec.ValidationError, TypeError, LookupError):
        found = {}
    return "/".join(str(found.get(name, "?"))[:253] for name in ("namespace", "name", "uid"))
