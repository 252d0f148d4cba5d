"""Permissions, and the roles that give them, for all records or for some."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from auditord_hookspecs.records import Record

if TYPE_CHECKING:  # the spool needs roles and no conditions
    from auditord_hookspecs.query import Condition

SITE_KEYS: Final = ("site_id", "site")
"""The meta keys that name a record's site; what may be written is classified by all of them that a record has."""

SELF: Final = "self"
"""Stands for the caller's user name in the values of a role's rows."""


class Permission(Enum):
    """The permission that a request needs; each route names one, only ``/health_check`` needs none."""

    READ = "read"
    """Records and sums of them."""
    WRITE = "write"
    """Adding records."""
    UPDATE = "update"
    """Setting the stop time of a record that is there (``PUT /record``)."""
    METRICS = "metrics"
    """``/metrics`` and the daemon's health in detail."""
    OPERATE = "operate"
    """The state of instances, running them, the quarantine with its raw input."""
    ADMINISTER = "administer"
    """Correcting, closing and deleting records, and what they were before."""


OF_RECORDS: Final = frozenset({Permission.READ, Permission.WRITE, Permission.UPDATE})
"""The permissions that can be limited to some records; the others are about the whole daemon."""


@dataclass(frozen=True, slots=True)
class Role:
    """The rights of a caller. Limits apply to the permissions of this role alone.

    Args:
        permissions: the permissions.
        rows: the visible records: those with at least one of the values under each key. None: every record. The value
            ``self`` stands for the caller's user name; see :meth:`of_user`.
        sites: the sites whose records may be written and updated. None: every site.
        prefixes: the prefixes of ids of those records. None: every id.

    Raises:
        ValueError: it is limited to some records, but has a permission for the whole daemon.
    """

    permissions: frozenset[Permission]
    rows: Mapping[str, tuple[str, ...]] | None = None
    sites: tuple[str, ...] | None = None
    prefixes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        beyond = sorted(each.value for each in self.permissions - OF_RECORDS)
        if beyond and self.is_limited:
            raise ValueError(
                f"{', '.join(beyond)}: this is about the whole daemon, and rows, sites and prefixes cannot limit it"
            )

    @property
    def is_limited(self) -> bool:
        """True if it is for some records only."""
        return not (self.rows is None and self.sites is None and self.prefixes is None)

    @property
    def is_personal(self) -> bool:
        """True if it shows each caller other records."""
        return any(SELF in values for values in (self.rows or {}).values())

    def of_user(self, user: str | None) -> "Role":
        """Return the role of one caller; ``self`` stands for no record where there is no user name."""
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
        """Return the condition on the records that it shows."""
        from auditord_hookspecs.query import AllOf, MetaContainsAny  # noqa: PLC0415 only to ask for records

        return AllOf(tuple(MetaContainsAny(key, values) for key, values in (self.rows or {}).items()))

    def shows(self, record: Record) -> bool:
        """Tell if a role shows one record that is at hand."""
        meta = record.meta or {}
        return all(not set(values).isdisjoint(meta.get(key, ())) for key, values in (self.rows or {}).items())

    def may_write(self, record: Record) -> bool:
        """Tell if a record of this id and these sites may be written; one that names no site may not if sites count."""
        return self.may_write_id(record.record_id) and (self.sites is None or _sites(record) <= set(self.sites))

    def may_write_id(self, record_id: str) -> bool:
        """Tell if a record of this id may be written, as far as the id tells."""
        return self.prefixes is None or record_id.startswith(self.prefixes)


def _sites(record: Record) -> set[str | None]:
    """Return every site that a record names, under any key; None stands for no site."""
    named = {site for key in SITE_KEYS for site in (record.meta or {}).get(key, ())}
    return {*named} or {None}


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller who was recognised. Of several roles each counts for itself: what one of them allows is allowed.

    Args:
        name: ``<authenticator>:<name>``; what provenance and the audit log say.
        roles: what they may do.
        user: their name in the records (meta ``user_id``), where the authenticator knows it.
    """

    name: str
    roles: tuple[Role, ...]
    user: str | None = None

    def having(self, permission: Permission) -> tuple[Role, ...]:
        """Return the roles that have a permission."""
        return tuple(role for role in self.roles if permission in role.permissions)

    def may(self, permission: Permission) -> bool:
        """Tell if any role has the permission."""
        return bool(self.having(permission))

    def visible(self) -> "Condition | None":
        """Return the condition on the records that may be read; None if all of them may."""
        from auditord_hookspecs.query import AnyOf  # noqa: PLC0415 only to ask for records

        reading = self.having(Permission.READ)
        if any(role.rows is None for role in reading):
            return None
        return reading[0].visible() if len(reading) == 1 else AnyOf(tuple(role.visible() for role in reading))
