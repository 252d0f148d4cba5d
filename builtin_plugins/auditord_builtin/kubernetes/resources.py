"""The resources of a pod: limits and requests of its containers, put together as Kubernetes' scheduler does.

The grammar of amounts (``500m``, ``1.5Gi``, ``2e3``) is that of ``resource.Quantity``
(https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/): a signed decimal number with a
binary suffix, a decimal suffix or a decimal exponent. ``1E`` is an exa, ``1E3`` a thousand.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Final, Literal

from auditord_builtin.kubernetes.pods import Container, Pod, Resources
from auditord_builtin.kubernetes.runs import Runs, seconds_by_container
from auditord_hookspecs import InvalidRecord

Side = Literal["limits", "requests"]
SIDES: Final[tuple[Side, ...]] = ("limits", "requests")
_NONE: Final = Decimal(0)
_CPU: Final = "cpu"

Amounts = Mapping[str, Decimal]

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
    """The number that a quantity stands for.

    Raises:
        InvalidRecord: the text is no quantity.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise InvalidRecord(f"{text[:60]!r} is no quantity such as 500m, 1.5Gi or 2e3")
    scale = Decimal(10) ** int(match["exponent"] or 0) * _SUFFIXES.get(match["suffix"] or "", Decimal(1))
    return Decimal(match["number"]) * scale


def granted(pod: Pod, side: Side) -> Amounts:
    """The amounts that the pod held, by resource, in cores, bytes and pieces.

    Containers run side by side and add up; init containers run one after the other before them, so the largest counts
    where it is larger; init containers that restart always (sidecars) run with all that follow them. A runtime's
    overhead belongs to the requests. Limits hold for a pod if every container has one: without it there is none. What
    is said of the pod as a whole (``spec.resources``) wins.

    Raises:
        InvalidRecord: a quantity cannot be read; the text names container and resource.
    """
    orders = _Orders(pod, side)
    amounts = {name: orders.together(name) for name in orders.names}
    return {name: amount for name, amount in {**amounts, **orders.whole}.items() if amount is not None}


class _Orders:
    """The limits or the requests of one pod."""

    def __init__(self, pod: Pod, side: Side) -> None:
        actual = {status.name: status.resources for status in pod.statuses if status.resources is not None}
        started = pod.spec.init_containers or ()
        self._side: Side = side
        self.by_name = {
            each.name: _read(each.name, actual.get(each.name) or each.resources, side)
            for each in (*started, *pod.spec.containers)
        }
        self._regular = pod.spec.containers
        self._initial = started
        overhead = pod.spec.overhead if side == "requests" else None
        self._overhead = _quantities("overhead", overhead)
        self.whole = _read("the pod", pod.spec.resources, side)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for amounts in self.by_name.values() for name in amounts)

    def together(self, name: str) -> Decimal | None:
        lasting = (*self._regular, *(each for each in self._initial if _is_sidecar(each)))
        if self._side == "limits" and any(name not in self.by_name[each.name] for each in lasting):
            return None
        steady = sum((self._amount(each, name) for each in lasting), _NONE)
        return max(steady, self._at_start(name)) + self._overhead.get(name, _NONE)

    def _at_start(self, name: str) -> Decimal:
        beside, peak = _NONE, _NONE
        for each in self._initial:
            peak = max(peak, beside + self._amount(each, name))
            beside += self._amount(each, name) if _is_sidecar(each) else _NONE
        return peak

    def _amount(self, container: Container, name: str) -> Decimal:
        return self.by_name[container.name].get(name, _NONE)


def core_seconds(pod: Pod, side: Side, runs: Runs, start: datetime, stop: datetime) -> Decimal | None:
    """CPU limits or requests times the time for which they were held, over all runs of all containers.

    None if it has no limit (a container is without one) or no request.

    Raises:
        InvalidRecord: a quantity cannot be read.
    """
    if granted(pod, side).get(_CPU) is None:
        return None
    orders, whole = _Orders(pod, side), max(0, int((stop - start).total_seconds()))
    seconds = seconds_by_container(runs, stop) or dict.fromkeys(_unseen(pod), whole)
    if _CPU in orders.whole:
        return orders.whole[_CPU] * (whole if seconds else 0)
    cpus = {name: granted.get(_CPU, _NONE) for name, granted in orders.by_name.items()}
    return sum((cpus.get(name, _NONE) * ran for name, ran in seconds.items()), _NONE)


def _unseen(pod: Pod) -> Iterable[str]:
    """Containers that may have run although nothing is known of it: they count for the pod's whole time.

    Statuses get lost when a pod is evicted. One that says that a container waits (for its image) is none of these.
    """
    if pod.status.phase == "Pending":
        return ()
    waiting = {status.name for status in pod.status.container_statuses or () if status.waits}
    return [each.name for each in pod.spec.containers if each.name not in waiting]


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def _read(where: str, resources: Resources | None, side: Side) -> Amounts:
    given = None if resources is None else resources.limits if side == "limits" else resources.requests
    return _quantities(f"{where}: {side}", given)


def _quantities(where: str, given: Mapping[str, str | int | float] | None) -> Amounts:
    found: dict[str, Decimal] = {}
    for name, text in (given or {}).items():
        try:
            found[name] = parse_quantity(str(text))
        except InvalidRecord as error:
            raise InvalidRecord(f"{where}.{name}: {error}") from error
    return found
