"""The records that a client may write: a site's collector its own site's, under its own ids."""

from collections.abc import Iterable
from typing import TypeAlias

from auditord_hookspecs import Permission, Principal, Record, Role

Roles: TypeAlias = tuple[Role, ...] | None
"""The roles that count, each for itself; None if everything is allowed."""


def writing_roles(principal: Principal) -> Roles:
    """The roles by which a principal may write records."""
    roles = principal.having(Permission.WRITE)
    return None if any(role.sites is None and role.prefixes is None for role in roles) else roles


def updating_roles(principal: Principal | None, record_id: str) -> Roles:
    """The roles by which a record of this id may be updated, as far as the id says."""
    if principal is None:
        return None
    roles = tuple(role for role in principal.having(Permission.UPDATE) if role.may_write_id(record_id))
    return None if any(role.sites is None and role.rows is None for role in roles) else roles


def may_write(roles: Roles, record: Record, stored: Record | None) -> bool:
    """Return whether one of the roles covers both the record and the stored record of its id.

    A full record closes an open one, and must not close another site's, even if the id's prefix matches.
    """
    if roles is None:
        return True
    return any(role.may_write(record) and (stored is None or role.may_write(stored)) for role in roles)


def may_update(roles: Iterable[Role], stored: Record) -> bool:
    """Return whether one of the roles is about the stored record; one that is not seen is not updated either."""
    return any(role.may_write(stored) and role.shows(stored) for role in roles)


def depends_on_stored(roles: Roles) -> bool:
    """Return whether the stored record decides as well; ids that begin with one's own prefix are one's own."""
    return roles is not None and any(role.sites is not None for role in roles)


def left_to_check(roles: Roles, record: Record) -> Roles:
    """The roles, one must allow the change once the stored record can be read; None if no check is needed."""
    if roles is None:
        return None
    writing = tuple(role for role in roles if role.may_write(record))
    return writing if all(role.sites is not None for role in writing) else None
