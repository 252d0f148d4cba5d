"""When the containers of a pod ran, and when the pod was over."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, TypeAlias

from auditord_builtin.kubernetes.pods import ContainerStatus, Pod, Span

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

    A status names the present run of a container and the one before it. Those before these are known only to whoever
    has watched.
    """
    found: Runs = {name: dict(spans) for name, spans in earlier.items()}
    for status in pod.statuses:
        spans = found.setdefault(status.name, {})
        for span in _spans(status):
            start, end = known(span.started_at), known(span.finished_at)
            if start is not None:
                spans[start.isoformat()] = end.isoformat() if end else spans.get(start.isoformat())
    return {name: spans for name, spans in found.items() if spans}


def _spans(status: ContainerStatus) -> Iterable[Span]:
    for state in (status.last_state, status.state):
        if state is not None:
            yield from (span for span in (state.terminated, state.running) if span is not None)


def seconds_by_container(runs: Runs, stop: datetime) -> Mapping[str, int]:
    """How long each container ran in whole seconds, all its runs together; what goes on ends with the pod."""
    return {name: sum(_seconds(start, end, stop) for start, end in spans.items()) for name, spans in runs.items()}


def _seconds(start: str, end: str | None, stop: datetime) -> int:
    finish = stop if end is None else datetime.fromisoformat(end)
    return max(0, int((finish - datetime.fromisoformat(start)).total_seconds()))


def ended_at(pod: Pod, runs: Runs, seen: datetime) -> datetime:
    """When a pod that is over was over.

    The last end of its containers, as with AUDITOR. An evicted pod may have lost their statuses, or have kept some as
    running: then the time at which its conditions changed or the kubelet last wrote its status.

    Args:
        pod: in a terminal phase.
        runs: of its containers.
        seen: when we learned of it; the end if nothing says anything.
    """
    ends = [datetime.fromisoformat(end) for spans in runs.values() for end in spans.values() if end is not None]
    whole = bool(ends) and all(end is not None for spans in runs.values() for end in spans.values())
    if whole:
        return max(ends)
    changed = [moment for moment in (*_changes(pod), *_writes(pod)) if moment <= seen]
    return max([*ends, *changed]) if changed else max([*ends, _gone_at(pod, seen)])


def removed_at(pod: Pod, runs: Runs, seen: datetime) -> datetime:
    """When a pod that was deleted before its end was over.

    Its containers may have stopped already; else the deletion ended it, whose time Kubernetes notes as a latest one.
    """
    every = [end for spans in runs.values() for end in spans.values()]
    if every and None not in every:
        return max(datetime.fromisoformat(end) for end in every if end is not None)
    return _gone_at(pod, seen)


def _gone_at(pod: Pod, seen: datetime) -> datetime:
    planned = known(pod.metadata.deletion_timestamp)
    return seen if planned is None else min(planned, seen)


def _changes(pod: Pod) -> Iterable[datetime]:
    for condition in pod.status.conditions or ():
        moment = known(condition.last_transition_time)
        if moment is not None and _STOPPING.get(condition.type) == condition.status:
            yield moment


def _writes(pod: Pod) -> Iterable[datetime]:
    for writer in pod.metadata.managed_fields or ():
        moment = known(writer.time)
        if moment is not None:
            yield moment
