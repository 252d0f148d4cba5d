"""What the API shows and does beyond records."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from auditord.actions import Actions
from auditord.health import Health, TaskHealth
from auditord.spool import Spool


@dataclass(frozen=True, slots=True)
class Inside:
    """The inside of the daemon.

    Args:
        control: where the control socket lies.
        health: how instances fare.
        spool: queues, last runs and quarantine.
        actions: what may be asked for.
        not_enabled: the instances of the configuration that do not take part.
    """

    control: Path
    health: Health
    spool: Spool
    actions: Actions
    not_enabled: Sequence[TaskHealth]
