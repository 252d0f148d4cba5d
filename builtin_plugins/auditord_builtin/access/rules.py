"""The common part of all authenticators' rules: patterns, roles, and the sum of the rules that fit."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from auditord_hookspecs import Identity, Section

Pattern = Annotated[str, Field(min_length=1)]
"""A literal text in which ``*`` stands for anything. No regular expression: in ``ce.example.org`` each dot would let
another host in."""


class Rule(Section):
    """The roles of those who fit; every rule that fits counts."""

    roles: tuple[str, ...] = Field(min_length=1, description="Roles, as access.roles names them.")


def named_roles(rules: Iterable[Rule]) -> Iterable[str]:
    """Every role that the rules name."""
    return [role for rule in rules for role in rule.roles]


def identified(name: str, fitting: Sequence[Rule], user: str | None = None) -> Identity | None:
    """The identity with the roles of all rules that fit; None if none does."""
    return Identity(name, tuple(dict.fromkeys(named_roles(fitting))), user) if fitting else None


def fits(pattern: str | None, *texts: str) -> bool:
    """True if one of the texts fits as a whole, or there is no pattern; capitals count."""
    return pattern is None or any(_compiled(pattern).fullmatch(text) for text in texts)


@lru_cache(maxsize=4_096)  # as many as are configured; texts of callers are never compiled
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, re.split(r"\*+", pattern))), re.DOTALL)
