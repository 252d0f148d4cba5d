"""What the rules of every authenticator have in common: roles, and the sum of those that fit."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from auditord_hookspecs import Identity, Section

Pattern = Annotated[str, Field(min_length=1)]


class Rule(Section):
    """Who gets which roles; every rule that fits counts."""

    roles: tuple[str, ...] = Field(min_length=1, description="Roles, as access.roles names them.")


def named_roles(rules: Iterable[Rule]) -> Iterable[str]:
    """Every role that the rules name."""
    return [role for rule in rules for role in rule.roles]


def identified(name: str, fitting: Sequence[Rule]) -> Identity | None:
    """Whoever the rules fit; None if none does."""
    return Identity(name, tuple(dict.fromkeys(named_roles(fitting)))) if fitting else None
