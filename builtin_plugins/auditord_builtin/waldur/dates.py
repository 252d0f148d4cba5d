"""Amounts for months that are over, on servers that may not know dates.

Servers of 2024 ignore the date of an amount, write it into the present month and answer 201. So the first amount of
each month that is over is looked at where it belongs before the others follow, and taken back from where it does not.
It is remembered before it is sent: a report that is cut off is put right by the next one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import msgspec

from auditord_builtin.waldur.client import WaldurClient
from auditord_builtin.waldur.errors import DateIgnored, WaldurError
from auditord_builtin.waldur.months import CLOCKS_APART
from auditord_builtin.waldur.plans import NOTHING, ResourcePlan
from auditord_builtin.waldur.state import ReportState

Amounts = Mapping[str, Decimal]


class Probe(msgspec.Struct, frozen=True):
    """An amount for a month that is over, on its way.

    Args:
        resource: Waldur's name of the resource.
        backend_id: its account, for messages.
        month: the first day of the month that the amount belongs to.
        present: the first day of the month that a server without dates would write it into.
        written: the amount of each component.
        before: what the present month had in its place.
    """

    resource: UUID
    backend_id: str
    month: date
    present: date
    written: dict[str, Decimal]
    before: dict[str, Decimal]


@dataclass(frozen=True, slots=True)
class DateCheck:
    """Finds out whether the server knows dates; the state remembers amounts that are on their way."""

    client: WaldurClient
    state: ReportState
    now: datetime

    async def announce(self, plan: ResourcePlan, month: date, amounts: Amounts) -> None:
        """Remember the first amount of a month that is over, before it is sent."""
        before = await self._there(self._present, plan.uuid)
        kept = {name: before.get(name, NOTHING) for name in amounts}
        probe = Probe(plan.uuid, plan.backend_id, month, self._present, dict(amounts), kept)
        await self._keep([*self._probes, probe])

    async def withdraw(self, plan: ResourcePlan) -> None:
        """Forget an amount that was refused."""
        await self._keep([each for each in self._probes if each.resource != plan.uuid])

    async def settle(self, *, answered: bool = False) -> None:
        """Look at every amount that was sent: if one is where it belongs, this server knows dates.

        Args:
            answered: the server has confirmed the last one; otherwise it may never have arrived.

        Raises:
            DateIgnored: none is; where they are instead they have been taken back.
            WaldurError: it cannot be known yet.
        """
        probes = self._probes
        if not probes:
            return
        for probe in probes:
            there = await self._there(probe.month, probe.resource)
            if all(there.get(name) == amount for name, amount in probe.written.items()):
                await self._keep([])
                return
        found = [await self._taken_back(probe) for probe in probes]
        await self._keep([])
        if texts := [text for text in found if text] or [_ignored(probe) for probe in probes[-1:] if answered]:
            raise DateIgnored(
                f"{'; '.join(texts)}. Nothing else of months that are over was sent; they need a newer Waldur"
            )

    async def _taken_back(self, probe: Probe) -> str:
        """Take an amount back that is not where it belongs; the text about it, empty if it never arrived."""
        there = await self._there(probe.present, probe.resource)
        wrong = {
            name: probe.before[name]
            for name, amount in probe.written.items()
            if there.get(name) == amount != probe.before[name]
        }
        if not wrong:
            return ""
        if probe.present != self._present:
            amounts = ", ".join(f"{name} {there[name]} instead of {before}" for name, before in wrong.items())
            return (
                f"{probe.backend_id}: {probe.present:%Y-%m} has the usage of {probe.month:%Y-%m}, {amounts}: this"
                f" Waldur does not know dates, and the month is over: mend it there by hand"
            )
        await self.client.set_usage(probe.resource, self.now - CLOCKS_APART, wrong)
        return f"{_ignored(probe)}, and put it into {probe.present:%Y-%m}, where it has been taken back"

    @property
    def _present(self) -> date:
        return (self.now - CLOCKS_APART).astimezone(UTC).date().replace(day=1)

    @property
    def _probes(self) -> Sequence[Probe]:
        try:
            return msgspec.convert(self.state.probes, list[Probe])
        except msgspec.ValidationError as error:
            raise WaldurError(f"the state of the reports is not ours: {error}") from error

    async def _there(self, month: date, resource: UUID) -> Amounts:
        return {row.type: row.usage for row in await self.client.component_usages(month, resource)}

    async def _keep(self, probes: Sequence[Probe]) -> None:
        self.state.probes = [msgspec.to_builtins(probe) for probe in probes]
        await self.state.save()


def _ignored(probe: Probe) -> str:
    taken = f"{probe.backend_id}: Waldur took the usage of {probe.month:%Y-%m} and does not have it there"
    return f"{taken}: it does not know dates"
