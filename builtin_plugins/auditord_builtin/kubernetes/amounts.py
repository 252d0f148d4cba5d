"""The resources that a pod holds: its size at each time, after in-place resizes, and totals over its life.

A total is the integral of the size over time. It counts either while the resources are reserved, or while containers
run; :class:`Holding` has both.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import chain
from typing import Final, Literal, TypeAlias

import msgspec

from auditord_builtin.kubernetes.pods import (
    Container,
    Pod,
    Quantities,
    Resources,
    Runs,
    Spec,
    find_reservation,
    if_known,
    limit_runs,
)
from auditord_hookspecs import InvalidRecord

ResourceBound = Literal["limits", "requests"]
RESOURCE_BOUNDS: Final[tuple[ResourceBound, ...]] = ("limits", "requests")
CPU: Final = "cpu"
MEMORY: Final = "memory"

Amounts: TypeAlias = dict[str, Decimal]
"""Amounts by resource, in cores, bytes or pieces."""

Weight: TypeAlias = Callable[[str], Decimal]
"""Returns the amount of a quantity, such as GPUs, that one unit of a resource counts for."""

Span: TypeAlias = tuple[datetime, datetime]
"""A time with its start and its end."""

_NONE: Final = Decimal(0)
_WHOLE: Final = ""
"""The name of the pod as a whole among the names of its containers."""

_MOST_SIZES: Final = 20
"""The maximum number of sizes of a pod. Beyond it, the two earliest become their average over time."""

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
    """Parse a quantity.

    Raises:
        InvalidRecord: the text is not a quantity.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise InvalidRecord(f"{text[:60]!r} is not a quantity such as 500m, 1.5Gi or 2e3")
    scale = Decimal(10) ** int(match["exponent"] or 0) * _SUFFIXES.get(match["suffix"] or "", Decimal(1))
    return Decimal(match["number"]) * scale


class Size(msgspec.Struct, frozen=True):
    """The resources that a pod was granted from an instant on.

    Args:
        since: that instant. The first size of a pod also counts before it.
        limits: amounts by container; those of the pod as a whole are under an empty name.
        requests: the same.
        sharers: the number of pods that use a ResourceClaim, by claim; one if it is missing.
    """

    since: datetime
    limits: dict[str, Amounts]
    requests: dict[str, Amounts]
    sharers: dict[str, int] = {}


Sizes: TypeAlias = tuple[Size, ...]
"""All sizes of a pod, in order."""


def observe_size(pod: Pod, sizes: Sizes, earlier: Pod | None, at: datetime) -> Sizes:
    """Append the pod's present size if it differs from its last one.

    If a quantity cannot be read, the sizes do not change.

    Args:
        pod: the present version.
        sizes: the sizes so far.
        earlier: the version before it.
        at: when the size changed, if it did.
    """
    if (since := find_reservation(pod)) is None:
        return sizes
    try:
        size = _read_size(pod, at if sizes else since, sizes[-1] if sizes else None, earlier)
    except InvalidRecord:
        return sizes
    return change_size(sizes, size) if sizes else (size,)


def change_size(sizes: Sizes, size: Size) -> Sizes:
    """Append a size, unless it equals the last one."""
    last = sizes[-1]
    size = msgspec.structs.replace(size, since=max(size.since, last.since))
    if size == msgspec.structs.replace(last, since=size.since):
        return sizes
    if size.since == last.since:
        return (*sizes[:-1], size)
    if len(sizes) < _MOST_SIZES:
        return (*sizes, size)
    first, second, third, *others = (*sizes, size)
    return (_average(first, second, third.since), third, *others)


def _average(first: Size, second: Size, end: datetime) -> Size:
    """Return the size that has the same total as two sizes until ``end``, when the second of them changed."""
    part = _seconds(first.since, second.since) / _seconds(first.since, end)

    def mix(one: dict[str, Amounts], other: dict[str, Amounts]) -> dict[str, Amounts]:
        return {
            name: {
                resource: part * one[name].get(resource, _NONE) + (1 - part) * other[name].get(resource, _NONE)
                for resource in one[name] | other[name]
            }
            for name in one.keys() & other.keys()
        }

    limits, requests = mix(first.limits, second.limits), mix(first.requests, second.requests)
    return Size(first.since, limits, requests, second.sharers)


def _read_size(pod: Pod, since: datetime, last: Size | None = None, earlier: Pod | None = None) -> Size:
    """Return the size of a pod by its status: the resources that its kubelet allocated and applied.

    A resize that the node has not accepted does not count. Where the status lacks them, the specification counts, but
    only if it has changed: a status that was lost does not undo a resize.
    """
    former = {} if earlier is None else {name: given for name, given, _, _ in _orders(earlier)}
    limits, requests = dict[str, Amounts](), dict[str, Amounts]()
    for name, given, applied, allocated in _orders(pod):
        if last is not None and applied is None and allocated is None and former.get(name, ()) == given:
            limits[name], requests[name] = last.limits.get(name, {}), last.requests.get(name, {})
            continue
        where, wanted, actual = name or "the pod", given or Resources(), applied or Resources()
        limits[name] = _read(f"{where}: limits", wanted.limits) | _read(f"{where}: limits", actual.limits)
        told = _read(f"{where}: requests", actual.requests)
        for resource, amount in _read(f"{where}: requests", allocated).items():
            told[resource] = max(amount, told.get(resource, amount))
        requests[name] = _read(f"{where}: requests", wanted.requests) | told
    return Size(since, limits, requests, {} if last is None else last.sharers)


def _orders(pod: Pod) -> Iterable[tuple[str, Resources | None, Resources | None, Quantities | None]]:
    """Yield the name, the specified resources, and those applied and allocated, of the pod and of each container."""
    yield _WHOLE, pod.spec.resources, pod.status.resources, pod.status.allocated_resources
    statuses = {status.name: status for status in pod.statuses}
    for each in (*(pod.spec.init_containers or ()), *pod.spec.containers):
        status = statuses.get(each.name)
        if status is None:
            yield each.name, each.resources, None, None
        else:
            yield each.name, each.resources, status.resources, status.allocated_resources


def _read(where: str, given: Quantities | None) -> Amounts:
    found: Amounts = {}
    for name, text in (given or {}).items():
        try:
            found[name] = parse_quantity(str(text))
        except InvalidRecord as error:
            raise InvalidRecord(f"{where}.{name}: {error}") from error
    return found


def count_resources(spec: Spec, size: Size, bound: ResourceBound) -> Amounts:
    """Return the limits or requests of a pod at one of its sizes, as the scheduler counts them.

    Containers run concurrently, so they add up. Init containers run before them, one after the other, so the largest
    amount counts if it is larger. Init containers that always restart (sidecars) run along with everything that follows
    them. A pod has a limit only if all its containers do. Resources of the pod as a whole (``spec.resources``) take
    precedence. The overhead of a runtime is added to requests.

    Raises:
        InvalidRecord: the overhead is not a quantity.
    """
    by_name = size.limits if bound == "limits" else size.requests
    initial = spec.init_containers or ()
    lasting = (*spec.containers, *(each for each in initial if _is_sidecar(each)))
    found: Amounts = {}
    for resource in set(chain.from_iterable(by_name.values())):

        def amount(container: Container, resource: str = resource) -> Decimal:
            return by_name.get(container.name, {}).get(resource, _NONE)

        if bound == "limits" and any(resource not in by_name.get(each.name, {}) for each in lasting):
            continue
        beside, peak = _NONE, _NONE
        for each in initial:
            peak = max(peak, beside + amount(each))
            beside += amount(each) if _is_sidecar(each) else _NONE
        found[resource] = max(peak, sum((amount(each) for each in lasting), _NONE))
    found |= by_name.get(_WHOLE, {})
    if bound == "requests":
        for resource, more in _read("overhead", spec.overhead).items():
            found[resource] = found.get(resource, _NONE) + more
    return found


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


class Holding:
    """A pod that has ended, for totals over its life.

    Args:
        pod: its last known version.
        sizes: all its sizes; if there are none, the present one counts.
        runs: the runs of its containers.
        stop: its end.

    Raises:
        InvalidRecord: a quantity cannot be read. The message names the container and the resource.
    """

    def __init__(self, pod: Pod, sizes: Sizes, runs: Runs, stop: datetime) -> None:
        self.sizes: Final = sizes or (_read_size(pod, stop),)
        self._spec = pod.spec
        self._overhead = _read("overhead", pod.spec.overhead)
        self._life = find_reservation(pod) or stop, stop
        if sizes:  # the conditions may have been lost since
            self._life = min(self._life[0], sizes[0].since), stop
        start = if_known(pod.status.start_time) or stop
        observed = {name: list(limit_runs(spans, stop)) for name, spans in runs.items()}
        if not observed and pod.status.phase != "Pending":
            # Statuses are lost when a pod is evicted. Then its containers count for the pod's whole time, except those
            # whose status says that they wait (for an image).
            waiting = {status.name for status in pod.status.container_statuses or () if status.waits}
            observed = {each.name: [(start, stop)] for each in pod.spec.containers if each.name not in waiting}
        self._runs: Mapping[str, Sequence[Span]] = observed

    def amounts(self, bound: ResourceBound) -> Amounts:
        """Return the limits or requests at the last size."""
        return count_resources(self._spec, self.sizes[-1], bound)

    def while_reserved(self, weight: Weight, shares: Callable[[Size], Decimal] | None = None) -> Decimal:
        """Return a quantity times seconds, from the scheduling of the pod to its end.

        Args:
            weight: the quantity that a unit of each requested resource counts for.
            shares: the quantity that the pod's ResourceClaims count for.
        """

        def amount(size: Size) -> Decimal:
            return _weigh(count_resources(self._spec, size, "requests"), weight) + (shares(size) if shares else _NONE)

        return _integrate(self.sizes, [self._life], amount)

    def while_running(
        self, weight: Weight, shares: Callable[[Size], Decimal] | None = None, bound: ResourceBound = "requests"
    ) -> Decimal:
        """Return a quantity times seconds, summed over all runs of all containers.

        Resources of the pod as a whole, its overhead and its claims count while any of the containers runs.
        """
        total = _NONE
        for name, spans in self._runs.items():

            def amount(size: Size, name: str = name) -> Decimal:
                by_name = size.limits if bound == "limits" else size.requests
                whole = by_name.get(_WHOLE, {})
                own = {resource: each for resource, each in by_name.get(name, {}).items() if resource not in whole}
                return _weigh(own, weight)

            total += _integrate(self.sizes, spans, amount)

        def common(size: Size) -> Decimal:
            whole = (size.limits if bound == "limits" else size.requests).get(_WHOLE, {})
            overhead = self._overhead if bound == "requests" else {}
            return _weigh(whole, weight) + _weigh(overhead, weight) + (shares(size) if shares else _NONE)

        united = list[Span]()  # the times in which at least one of the containers ran
        for begin, end in sorted(chain.from_iterable(self._runs.values())):
            if united and begin <= united[-1][1]:
                united[-1] = united[-1][0], max(end, united[-1][1])
            else:
                united.append((begin, end))
        return total + _integrate(self.sizes, united, common)


def _weigh(amounts: Amounts, weight: Weight) -> Decimal:
    return sum((amount * weight(resource) for resource, amount in amounts.items()), _NONE)


def _integrate(sizes: Sizes, spans: Iterable[Span], amount: Callable[[Size], Decimal]) -> Decimal:
    """Return the amount times seconds, over the time that each size has in the spans."""
    total = _NONE
    for number, size in enumerate(sizes):
        until = sizes[number + 1].since if number + 1 < len(sizes) else None
        seconds = _NONE
        for begin, end in spans:
            first = begin if number == 0 else max(begin, size.since)
            last = end if until is None else min(end, until)
            seconds += _seconds(first, last) if first < last else _NONE
        if seconds:
            total += amount(size) * seconds
    return total


def _seconds(begin: datetime, end: datetime) -> Decimal:
    return Decimal((end - begin) // timedelta(microseconds=1)) / 1_000_000
