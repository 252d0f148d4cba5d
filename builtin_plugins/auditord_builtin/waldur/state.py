"""The reporting state of an offering, stored between runs."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

from auditord_builtin.waldur.api import User
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.planning import ResourcePlan
from auditord_hookspecs import Column, PanelContext, PanelPart, PluginContext, Table
from auditord_hookspecs.panels import table_of_runs

RETRY_AFTER: Final = timedelta(days=1)
"""Send refused amounts again after this long, since Waldur's rules may have changed."""

Json = Mapping[str, Any]  # Any: JSON of our own


class ReportState:
    """The plugin's stored state. A dry run does not save it.

    Attributes:
        ignores_dates: the version of Waldur if it ignores dates and writes every month into the current one.
        refused: see :class:`Refusals`.
        amounts: Waldur's amounts of the reported months, by month, resource and component, for the panel.
        probes: see :class:`auditord_builtin.waldur.writing.DateCheck`.
    """

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        kept: Json = context.state or {}
        self.ignores_dates: str | None = kept.get("ignores_dates")
        self.refused: Mapping[str, Json] = kept.get("refused", {})
        self.probes: Sequence[Json] = kept.get("probes", ())
        self.amounts: Mapping[str, Mapping[str, Mapping[str, str]]] = kept.get("amounts", {})
        self._saved = self._as_json()

    def _as_json(self) -> Json:
        dates = {} if self.ignores_dates is None else {"ignores_dates": self.ignores_dates}
        probes = {"probes": list(self.probes)} if self.probes else {}
        amounts = {"amounts": self.amounts} if self.amounts else {}
        return {"refused": dict(self.refused), **dates, **probes, **amounts}

    def record_amounts(self, month: str, plan: ResourcePlan) -> None:
        texts = {name: str(amount) for name, amount in plan.totals.items()}
        of_month = {**self.amounts.get(month, {}), plan.backend_id: texts}
        self.amounts = {**self.amounts, month: of_month}

    def forget_months(self, kept: Collection[str]) -> None:
        """Drop the amounts of months that are no longer reported."""
        self.amounts = {month: amounts for month, amounts in self.amounts.items() if month in kept}

    async def save(self) -> None:
        """Save the state if it has changed."""
        state = self._as_json()
        if state != self._saved and not self._context.dry_run:
            await self._context.save_state(state)
            self._saved = state


class Refusals:
    """The amounts that Waldur refused because their month is closed, so that they are not sent in every run.

    Args:
        kept: the stored refusals, from :meth:`as_json`.
        now: the current time.
        identity: from :func:`identity_of`. Amounts that another identity was refused are tried again.
    """

    def __init__(self, kept: Mapping[str, Json], now: datetime, identity: str) -> None:
        self._kept, self._now, self._identity = dict(kept), now, identity

    def has(self, month: str, plan: ResourcePlan) -> bool:
        """Return True if the same amounts were refused within ``RETRY_AFTER``."""
        refusal = self._kept.get(_key(month, plan))
        if refusal is None or refusal.get("figures") != _digest(plan) or refusal.get("identity") != self._identity:
            return False
        return self._now - datetime.fromisoformat(refusal["at"]) < RETRY_AFTER

    def add(self, month: str, plan: ResourcePlan) -> None:
        refusal = {"figures": _digest(plan), "identity": self._identity, "at": self._now.isoformat()}
        self._kept[_key(month, plan)] = refusal

    def as_json(self, months: Collection[str]) -> Mapping[str, Json]:
        return {key: refusal for key, refusal in self._kept.items() if key.partition(" ")[0] in months}


def identity_of(config: WaldurConfig, user: User) -> str:
    """Return a digest of the credentials and their user's roles. Another token or role may have more permissions."""
    secrets = (config.waldur_api_token, config.oidc_client_secret)
    credentials = [secret.get_secret_value() for secret in secrets if secret is not None]
    roles = sorted(f"{each.role_name} {each.scope_uuid}" for each in user.permissions)
    return _shorten([*credentials, config.oidc_client_id or "", user.uuid.hex, str(user.is_staff), *roles])


def _key(month: str, plan: ResourcePlan) -> str:
    return f"{month} {plan.uuid}"


def _digest(plan: ResourcePlan) -> str:
    users = [f"{user} {name} {each}" for user, amounts in plan.users.items() for name, each in amounts.items()]
    return _shorten([*(f"{name} {amount}" for name, amount in plan.totals.items()), *sorted(users)])


def _shorten(texts: Collection[str]) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:16]


async def show_resources(context: PanelContext) -> Sequence[PanelPart]:
    """Return the panel: Waldur's amounts, the amounts of past months that Waldur refused, and the last runs."""
    state: Mapping[str, Any] = await context.state() or {}  # Any: JSON of the plugin's own
    refused: Mapping[str, Mapping[str, str]] = state.get("refused", {})
    rows = [
        (*key.partition(" ")[::2], datetime.fromisoformat(refusal["at"])) for key, refusal in sorted(refused.items())
    ]
    amounts: Mapping[str, Mapping[str, Mapping[str, str]]] = state.get("amounts", {})
    amount_rows = [
        (month, resource, component, Decimal(amount))
        for month in sorted(amounts, reverse=True)
        for resource, by_component in sorted(amounts[month].items())
        for component, amount in by_component.items()
    ]
    return [
        Table(
            [Column(name) for name in ("Month", "Resource", "Component", "Amount")],
            amount_rows,
            "Amounts that Waldur has",
        ),
        Table([Column(name) for name in ("Month", "Resource", "Refused")], rows, "Amounts that Waldur refused"),
        table_of_runs(await context.last_runs()),
    ]
