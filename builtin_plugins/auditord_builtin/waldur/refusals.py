"""Figures that Waldur does not take because a month is over: remembered, so that they are not sent every half hour."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from auditord_builtin.waldur.client import User
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.plans import ResourcePlan

AGAIN_AFTER: Final = timedelta(days=1)
"""After so long the same amounts are tried again: Waldur's rules may be others by then."""

Refusal = Mapping[str, Any]  # Any: JSON


class Refusals:
    """The figures that were refused, by month and resource.

    Args:
        kept: what :meth:`as_json` gave.
        now: the present instant.
        identity: what :func:`identity_of` gave; what another identity was refused is tried again.
    """

    def __init__(self, kept: Mapping[str, Refusal], now: datetime, identity: str) -> None:
        self._kept = dict(kept)
        self._now = now
        self._identity = identity

    def has(self, month: str, plan: ResourcePlan) -> bool:
        """True if the very same figures were refused a short while ago."""
        refusal = self._kept.get(_key(month, plan))
        if refusal is None or refusal.get("figures") != _digest(plan) or refusal.get("identity") != self._identity:
            return False
        return self._now - datetime.fromisoformat(refusal["at"]) < AGAIN_AFTER

    def add(self, month: str, plan: ResourcePlan) -> None:
        """Remember a refusal."""
        refusal = {"figures": _digest(plan), "identity": self._identity, "at": self._now.isoformat()}
        self._kept[_key(month, plan)] = refusal

    def as_json(self, months: Collection[str]) -> Mapping[str, Refusal]:
        """The refusals to be kept, of the months that are still reported."""
        return {key: refusal for key, refusal in self._kept.items() if key.partition(" ")[0] in months}


def identity_of(config: WaldurConfig, user: User) -> str:
    """A digest of the credentials and of what their user may do: a new token or role may be allowed more."""
    secrets = (config.waldur_api_token, config.oidc_client_secret)
    credentials = [secret.get_secret_value() for secret in secrets if secret is not None]
    roles = sorted(f"{each.role_name} {each.scope_uuid}" for each in user.permissions)
    return _short([*credentials, config.oidc_client_id or "", user.uuid.hex, str(user.is_staff), *roles])


def _key(month: str, plan: ResourcePlan) -> str:
    return f"{month} {plan.uuid}"


def _digest(plan: ResourcePlan) -> str:
    users = [f"{user} {name} {each}" for user, amounts in plan.users.items() for name, each in amounts.items()]
    return _short([*(f"{name} {amount}" for name, amount in plan.totals.items()), *sorted(users)])


def _short(texts: Collection[str]) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:16]
