"""The devices that pods hold through ResourceClaims (dynamic resource allocation, ``resource.k8s.io/v1``).

A claim is read when its pod is first seen running, since Kubernetes deletes the claims that it made for a pod at the
pod's end. If the claim is gone by then, its template tells how many devices it asked for.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final, TypeAlias

import anyio
import msgspec

from auditord_builtin.kubernetes.amounts import Size
from auditord_builtin.kubernetes.pods import Pod
from auditord_builtin.kubernetes.reading import Cluster, Refused
from auditord_hookspecs import AuditordError

_AT_ONCE: Final = 8


class Devices(msgspec.Struct, frozen=True):
    """Devices of one class and driver. The driver is empty if only the template of the claim is known."""

    device_class: str
    driver: str
    count: int = 1


class Claim(msgspec.Struct, frozen=True):
    """The devices that were allocated to a claim.

    Args:
        devices: the devices.
        shared: other pods may use the claim, too: it was not made for this pod.
        problem: why the devices are unknown; None if they are known.
    """

    devices: tuple[Devices, ...] = ()
    shared: bool = False
    problem: str | None = None


Claims: TypeAlias = dict[str, Claim]
"""The claims of a pod: those that others may use by ``namespace/name``, its own ones by its name for them."""


class Reference(msgspec.Struct, frozen=True):
    """A claim that a pod uses, with the template from which it was made for this pod, and its key in ``Claims``."""

    namespace: str
    name: str
    template: str | None
    key: str


FoundClaims: TypeAlias = dict[Reference, Claim]
"""The claims that were read for some pods."""


def _references(pod: Pod) -> Iterable[Reference]:
    namespace = pod.metadata.namespace
    made = {each.name: each for each in pod.status.resource_claim_statuses or ()}
    for each in pod.spec.resource_claims or ():
        template = each.resource_claim_template_name
        if (shared := each.resource_claim_name) is not None:
            yield Reference(namespace, shared, None, f"{namespace}/{shared}")
        elif each.name not in made:  # the status was lost, and the real name ends in random letters
            yield Reference(namespace, f"{pod.metadata.name}-{each.name}", template, each.name)
        elif (name := made[each.name].resource_claim_name) is not None:  # otherwise the pod needs no claim
            yield Reference(namespace, name, template, each.name)


def find_problem(pod: Pod, claims: Claims) -> str | None:
    """Return why the devices of a pod are unknown, or None if they are known."""
    for each in _references(pod):
        if each.key not in claims:
            return f"ResourceClaim {each.namespace}/{each.name} was not read"
        if (problem := claims[each.key].problem) is not None:
            return problem
    return None


def claims_of(pod: Pod, found: FoundClaims) -> Claims:
    return {each.key: found[each] for each in _references(pod) if each in found}


async def read_claims(cluster: Cluster, pods: Iterable[Pod]) -> FoundClaims:
    """Read the claims of pods from the API server.

    Raises:
        AuditordError: an answer is missing or incomplete. A claim that may not be read has a ``problem`` instead.
    """
    found, faults = FoundClaims(), list[AuditordError]()
    waiting = list({each for pod in pods for each in _references(pod)})

    async def read() -> None:
        while waiting and not faults:
            reference = waiting.pop()
            try:
                found[reference] = await _read(cluster, reference)
            except AuditordError as error:
                faults.append(error)

    async with anyio.create_task_group() as group:
        for _ in range(min(_AT_ONCE, len(waiting))):
            group.start_soon(read)
    if faults:
        raise faults[0]
    return found


async def _read(cluster: Cluster, reference: Reference) -> Claim:
    namespace, name, template = reference.namespace, reference.name, reference.template
    shared, claim = reference.key == f"{namespace}/{name}", f"ResourceClaim {namespace}/{name}"
    try:
        body = await cluster.resource("resourceclaims", namespace, name)
        devices = None if body is None else _parse(msgspec.json.decode(body))
        if devices is None and template is not None:
            body = await cluster.resource("resourceclaimtemplates", namespace, template)
            devices = None if body is None else _parse(msgspec.json.decode(body)["spec"])
    except Refused as error:
        return Claim(shared=shared, problem=str(error))
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError) as error:
        return Claim(shared=shared, problem=f"{claim} cannot be read: {error!r}")
    if devices is None:
        return Claim(shared=shared, problem=f"the devices of {claim} are unknown: it was gone before it was read")
    return Claim(devices, shared)


def _parse(claim: Any) -> tuple[Devices, ...] | None:  # Any: JSON
    """Return the devices that were allocated to a claim, or that a claim or template without allocation asks for.

    None: their number was left to the scheduler. Devices with administrative access are not reserved.
    """
    requests: Any = claim["spec"]["devices"].get("requests") or ()
    status: Any = claim.get("status") or {}
    counts = Counter[tuple[str, str]]()
    if status.get("allocation") is None:
        for each in requests:
            exactly = each.get("exactly")
            if exactly is None or exactly.get("allocationMode", "ExactCount") != "ExactCount":
                return None
            if not exactly.get("adminAccess"):
                counts[exactly["deviceClassName"], ""] += exactly.get("count", 1)
    else:
        classes = {each["name"]: each["exactly"]["deviceClassName"] for each in requests if each.get("exactly")}
        for each in requests:
            for choice in each.get("firstAvailable") or ():
                classes[f"{each['name']}/{choice['name']}"] = choice["deviceClassName"]
        for each in status["allocation"]["devices"].get("results") or ():
            if not each.get("adminAccess"):
                counts[classes.get(each["request"], ""), each["driver"]] += 1
    return tuple(Devices(*names, count) for names, count in counts.items())


def share_devices(claims: Claims, size: Size, weight: Callable[[str, str], Decimal]) -> Decimal:
    """Return a pod's share of the devices of its claims. Pods that use a claim at the same time share it equally.

    Args:
        claims: the pod's claims.
        size: the pod's size at that time, with the number of pods by claim.
        weight: returns the quantity that a device counts for, by its device class and driver.
    """
    total = Decimal(0)
    for key, claim in claims.items():
        whole = sum((weight(each.device_class, each.driver) * each.count for each in claim.devices), Decimal(0))
        total += whole / size.sharers.get(key, 1)
    return total
