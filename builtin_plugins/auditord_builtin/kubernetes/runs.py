"""The times of the containers of a pod, and its end."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from auditord_builtin.kubernetes.pods import KUBELET, ContainerStatus, Pod

_NEVER: Final = 1971
"""Kubernetes writes the years 1 and 1970 where it does not know a time."""

_STOPPING: Final = {"Ready": "False", "ContainersReady": "False", "DisruptionTarget": "True"}
"""Conditions that change when containers stop."""

Runs: TypeAlias = dict[str, dict[str, str | None]]
"""By container the start of each of its runs and its end, None while it goes on; ISO 8601, since it is kept as JSON."""


def known(moment: datetime | None) -> datetime | None:
    """The instant, unless it is one that Kubernetes writes for none."""
    return moment if moment is not None and moment.year >= _NEVER else None


def runs_of(pod: Pod, earlier: Runs) -> Runs:
    """All runs of the containers that are known: what the status says now, and what it said before.

    A status names the present run of a container and the one before it; those before are known by watching alone.
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
    """The time of each container in whole seconds, all its runs together."""
    return {name: sum(_seconds(start, end) for start, end in _bounded(spans, stop)) for name, spans in runs.items()}


def _bounded(spans: Mapping[str, str | None], stop: datetime) -> Iterable[tuple[datetime, datetime]]:
    """The runs of one container: each ends at the latest when the next one starts, and the last one with the pod.

    Ends are lost: a kubelet's status names two runs, and nobody may have looked at the ones before.
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
    """The end of a pod that is over, or was deleted.

    The last end of its containers, as with AUDITOR, if all of them have ended. Otherwise a deletion ended it, whose
    time Kubernetes notes as a latest one. In a terminal phase the statuses of containers may be lost (an eviction), or
    say that they still run or wait for their image: then its conditions changed, or the kubelet last wrote its status.
    If nothing says anything, it ended when it was seen to be over.
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
    """By container the end of its last run; ends of earlier ones say nothing of the pod's."""
    return [_instant(spans[max(spans, key=datetime.fromisoformat)]) for spans in runs.values()]


def _all_ended(pod: Pod, runs: Runs) -> bool:
    if not runs or None in _last_ends(runs):
        return False
    initial = {each.name for each in pod.spec.init_containers or ()}
    over = all(_says_its_end(status) for status in pod.status.container_statuses or ())
    return _failed_at_start(pod) or (over and not initial.issuperset(runs))


def _says_its_end(status: ContainerStatus) -> bool:
    """True if it ended and waits for no other try; one that was lost with its node has no times."""
    ended = status.state.terminated if status.state is not None else None
    return ended is not None and known(ended.finished_at) is not None


def _failed_at_start(pod: Pod) -> bool:
    """True if an init container ended the pod, so that the others never ran."""
    states = [status.state for status in pod.status.init_container_statuses or () if status.state is not None]
    return pod.terminal and any(state.terminated and state.terminated.exit_code for state in states)
