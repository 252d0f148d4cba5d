"""The rights of callers of the API: roles, by name."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final

from pydantic import Field, model_validator

from auditord_hookspecs import Duration, Permission, Role, Section

Value = Annotated[str, Field(min_length=1)]
RoleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]

READY_MADE: Final[Mapping[str, Role]] = {
    "reader": Role(frozenset({Permission.READ})),
    "writer": Role(frozenset({Permission.WRITE, Permission.UPDATE})),
    "monitor": Role(frozenset({Permission.METRICS})),
    "operator": Role(frozenset({Permission.READ, Permission.METRICS, Permission.OPERATE})),
    "administrator": Role(frozenset(Permission)),
}
"""Roles that need no configuration; one of the same name in the configuration replaces them."""


class RoleSection(Section):
    """The permissions of a role, and its records."""

    permissions: tuple[Permission, ...] = Field(
        min_length=1, description="Any of read, write, update, metrics, operate and administer."
    )
    rows: Mapping[Value, tuple[Value, ...]] | None = Field(
        default=None,
        min_length=1,
        description="The records that are seen: meta keys, each with values of which a record must have one; self is "
        "the caller's own user name.",
    )
    sites: tuple[Value, ...] | None = Field(
        default=None, min_length=1, description="The sites (site_id, site) whose records are written and updated."
    )
    prefixes: tuple[Value, ...] | None = Field(
        default=None, min_length=1, description="What the ids of records that are written and updated begin with."
    )

    @model_validator(mode="after")
    def _can_be_limited(self) -> "RoleSection":
        self.role()
        return self

    def role(self) -> Role:
        """The role as the host works with it.

        Raises:
            ValueError: it is limited to some records and yet may do what is about the whole daemon.
        """
        return Role(frozenset(self.permissions), self.rows, self.sites, self.prefixes)


class AccessSection(Section):
    """The rights of callers, once an authenticator is configured."""

    roles: Mapping[RoleName, RoleSection] = Field(
        default={},
        description="Roles by name, beside reader, writer, monitor, operator and administrator.",
    )
    session_length: Duration = Field(
        default=timedelta(hours=12),
        gt=timedelta(0),
        description="How long people stay logged in to the page; a revoked token ends their session before.",
    )

    def known_roles(self) -> Mapping[str, Role]:
        """Every role by name, the ready-made ones included."""
        return {**READY_MADE, **{name: section.role() for name, section in self.roles.items()}}
