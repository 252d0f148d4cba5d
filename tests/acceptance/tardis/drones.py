"""Lets drones of the released TARDIS live, in a virtual environment of its own: ``drones.py CONFIGURATION LIFE…``.

Configuration, drones, their states and the plugin that talks to us are TARDIS' own. The site and the batch system are
played here: what they answer is known beforehand. Prints one JSON object per drone.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from importlib import import_module
from typing import Any, Final, TypeAlias


def tardis(module: str) -> Any:  # Any: TARDIS is not installed where types are checked
    return import_module(f"tardis.{module}")


MachineStatus: Final = tardis("interfaces.batchsystemadapter").MachineStatus
ResourceStatus: Final = tardis("interfaces.siteadapter").ResourceStatus
AttributeDict: Final = tardis("utilities.attributedict").AttributeDict
States: Final = tardis("resources.dronestates")

RUNNING, BOOTING = ResourceStatus.Running, ResourceStatus.Booting
AVAILABLE, DRAINED = MachineStatus.Available, MachineStatus.Drained
MOST_STATES: Final = 100

Life: TypeAlias = Sequence[tuple[Any, Any]]  # Any: TARDIS' statuses
"""The answers of the site each time it is asked, and of the batch system where that is asked too; then all is gone."""

LIVES: Final[Mapping[str, Life]] = {
    "plain": [(RUNNING, None), (RUNNING, AVAILABLE), (RUNNING, AVAILABLE), (RUNNING, DRAINED)],
    "returning": [
        *[(RUNNING, None), (RUNNING, AVAILABLE), (RUNNING, AVAILABLE)],
        *[(BOOTING, None), (BOOTING, None), (RUNNING, None), (RUNNING, AVAILABLE), (RUNNING, DRAINED)],
    ],
    "never_available": [(BOOTING, None), (ResourceStatus.Error, None)],
    "lost": [(RUNNING, None), (RUNNING, AVAILABLE)],  # and then TARDIS itself is gone
}


class Site:
    """A site where a drone has a life that is known beforehand.

    Args:
        life: what it answers.
    """

    site_name = "TEST"
    machine_type = "small"
    machine_meta_data = AttributeDict(Cores=12, Memory=100)
    drone_minimum_lifetime = None
    drone_heartbeat_interval = 0

    def __init__(self, life: Iterable[tuple[Any, Any]]) -> None:
        self._life = iter(life)
        self.machine: Any = None

    def drone_uuid(self, uuid: str) -> str:
        return f"{self.site_name.lower()}-{uuid}"

    async def deploy_resource(self, _attributes: Any) -> Any:
        return AttributeDict(remote_resource_uuid="vm-1", resource_status=BOOTING)

    async def resource_status(self, _attributes: Any) -> Any:
        status, self.machine = next(self._life, (ResourceStatus.Deleted, None))
        return AttributeDict(resource_status=status)

    async def stop_resource(self, _attributes: Any) -> Any:
        return AttributeDict(resource_status=ResourceStatus.Stopped)

    async def terminate_resource(self, _attributes: Any) -> Any:
        return AttributeDict(resource_status=ResourceStatus.Deleted)


class BatchSystem:
    """A batch system that says what the life of its drone tells it to.

    Args:
        site: where the drone is.
    """

    machine_meta_data_translation_mapping = AttributeDict(Cores=1, Memory=1)

    def __init__(self, site: Site) -> None:
        self._site = site

    async def integrate_machine(self, drone_uuid: str) -> None: ...

    async def disintegrate_machine(self, drone_uuid: str) -> None: ...

    async def drain_machine(self, drone_uuid: str) -> None: ...

    async def get_machine_status(self, drone_uuid: str) -> Any:
        del drone_uuid
        return self._site.machine

    async def get_allocation(self, drone_uuid: str) -> float:
        del drone_uuid
        return 0.5

    async def get_utilisation(self, drone_uuid: str) -> float:
        del drone_uuid
        return 0.5


async def live(name: str, plugin: Any) -> dict[str, Any]:
    """One drone from its request to its end; what it was called, and its states."""
    site = Site(LIVES[name])
    drone = tardis("resources.drone").Drone(site, BatchSystem(site), [plugin])
    drone.resource_attributes.resource_status = BOOTING
    last = States.AvailableState if name == "lost" else States.DownState
    await drone.set_state(States.RequestState())
    states = [_state(drone)]
    while not isinstance(drone.state, last):
        if len(states) > MOST_STATES:
            raise RuntimeError(f"{name} does not end: {states}")
        await drone.state.run(drone)
        if _state(drone) != states[-1]:
            states.append(_state(drone))
    return {"life": name, "uuid": drone.resource_attributes.drone_uuid, "states": states}


def _state(drone: Any) -> tuple[str, str]:
    """The name of a drone's state, and since when it is in it."""
    return type(drone.state).__name__, drone.resource_attributes.updated.astimezone(UTC).isoformat()


async def main(lives: Sequence[str]) -> None:
    plugin = tardis("plugins.auditor").Auditor()
    for name in lives:
        sys.stdout.write(json.dumps(await live(name, plugin)) + "\n")


tardis("configuration.configuration").Configuration(sys.argv[1])
asyncio.run(main(sys.argv[2:]))
sys.stdout.flush()
# The plugin's client has threads of its own, and aborts the process now and then when Python ends beneath them.
os._exit(0)
