"""Permissions of API callers, and roles, which grant them for all or some records."""

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from auditord_hookspecs.records import Record

if TYPE_CHECKING:  # the spool needs roles without conditions
    from auditord_hookspecs.query import Condition

SITE_KEYS: Final = ("site_id", "site")
"""The meta keys of a record's site. ``Role.may_write`` requires that all of their values are allowed."""

SELF: Final = "self"
"""A placeholder for the caller's user name in the values of a role's rows."""


class Permission(Enum):
    """The permissions that routes need. Only ``/health_check`` needs none."""

    READ = "read"
    """Read records and sums."""
    WRITE = "write"
    """Add records."""
    UPDATE = "update"
    """Set the stop time of a stored record (``PUT /record``)."""
    METRICS = "metrics"
    """Read ``/metrics`` and the daemon's detailed health."""
    OPERATE = "operate"
    """See and run instances; read, retry and discard quarantined entries with their raw input."""
    ADMINISTER = "administer"
    """Correct, close and delete records; read their former versions."""


OF_RECORDS: Final = frozenset({Permission.READ, Permission.WRITE, Permission.UPDATE})
"""The permissions that a role can limit to some records. The others concern the whole daemon."""


class Role(msgspec.Struct, frozen=True):
    """The rights of a caller. Limits apply to the permissions of this role alone.

    Args:
        permissions: the permissions.
        rows: limits the visible records to those with at least one of the values under each key. None: all records. The
            value ``self`` stands for the caller's user name; see :meth:`of_user`.
        sites: the sites whose records may be written and updated. None: all sites.
        prefixes: the prefixes of the ids of records that may be written and updated. None: all ids.
        totals: whether a role with ``rows`` may also see sums over all records, without names, for shares of the whole.

    Raises:
        ValueError: the role is limited to some records, but has a permission for the whole daemon.
    """

    permissions: frozenset[Permission]
    rows: Mapping[str, tuple[str, ...]] | None = None
    sites: tuple[str, ...] | None = None
    prefixes: tuple[str, ...] | None = None
    totals: bool = False

    def __post_init__(self) -> None:
        beyond = sorted(each.value for each in self.permissions - OF_RECORDS)
        if beyond and self.is_limited:
            raise ValueError(
                f"{', '.join(beyond)}: a permission for the whole daemon, which rows, sites and prefixes cannot limit"
            )

    @property
    def is_limited(self) -> bool:
        """True if the role is limited to some records."""
        return not (self.rows is None and self.sites is None and self.prefixes is None)

    @property
    def is_personal(self) -> bool:
        """True if the visible records depend on the caller's user name."""
        return any(SELF in values for values in (self.rows or {}).values())

    def of_user(self, user: str | None) -> "Role":
        """Return the role with ``self`` replaced by a user name. Without a name, ``self`` matches no records."""
        if not self.is_personal:
            return self
        own = () if user is None else (user,)
        named = (self.rows or {}).items()
        return replace(
            self,
            rows={
                key: tuple(each for value in values for each in (own if value == SELF else (value,)))
                for key, values in named
            },
        )

    def visible(self) -> "Condition":
        """Return the condition that visible records fulfil. The host adds it to queries."""
        from auditord_hookspecs.query import AllOf, MetaContainsAny  # noqa: PLC0415 only queries need it

        return AllOf(tuple(MetaContainsAny(key, values) for key, values in (self.rows or {}).items()))

    def shows(self, record: Record) -> bool:
        """Return whether a record is visible."""
        meta = record.meta or {}
        return all(not set(values).isdisjoint(meta.get(key, ())) for key, values in (self.rows or {}).items())

    def may_write(self, record: Record) -> bool:
        """Return whether a record may be written. With ``sites``, a record without a site may not."""
        if self.sites is None:
            return self.may_write_id(record.record_id)
        named = {site for key in SITE_KEYS for site in (record.meta or {}).get(key, ())}
        return self.may_write_id(record.record_id) and bool(named) and named <= set(self.sites)

    def may_write_id(self, record_id: str) -> bool:
        """Return whether ``prefixes`` allow writing a record with this id."""
        return self.prefixes is None or record_id.startswith(self.prefixes)


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller. An action is allowed if at least one of the roles allows it.

    Args:
        name: ``<authenticator>:<name>``, as in provenance and the audit log.
        roles: the caller's roles.
        user: the caller's name in records (meta ``user_id``), if the authenticator knows it.
    """

    name: str
    roles: tuple[Role, ...]
    user: str | None = None

    def having(self, permission: Permission) -> tuple[Role, ...]:
        """Return the roles that have a permission."""
        return tuple(role for role in self.roles if permission in role.permissions)

    def may(self, permission: Permission) -> bool:
        """Return whether any role has a permission."""
        return bool(self.having(permission))

    @property
    def sees_totals(self) -> bool:
        """True if the caller may see sums over all records."""
        return any(role.totals or role.rows is None for role in self.having(Permission.READ))

    def visible(self) -> "Condition | None":
        """Return the condition that readable records fulfil; None if the caller may read all records."""
        from auditord_hookspecs.query import AnyOf  # noqa: PLC0415 only queries need it

        reading = self.having(Permission.READ)
        if any(role.rows is None for role in reading):
            return None
        return reading[0].visible() if len(reading) == 1 else AnyOf(tuple(role.visible() for role in reading))
