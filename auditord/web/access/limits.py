"""What a caller may write: a site's collector its own site's records, under its own ids."""

from collections.abc import Iterable, Mapping, Sequence

from auditord.store import RecordStore
from auditord_hookspecs import Permission, Principal, Record, Role
from auditord_hookspecs.wire import decode_record


async def may_write(principal: Principal | None, records: Sequence[Record], store: RecordStore) -> Sequence[bool]:
    """Whether each record may be written; the limits of each role count for themselves.

    A record that is there decides as well, where its id alone says nothing about whose it is: a full record closes an
    open one, and must not close another site's.

    Raises:
        StoreUnavailable: that could not be found out.
    """
    roles = () if principal is None else principal.having(Permission.WRITE)
    if principal is None or any(role.sites is None and role.prefixes is None for role in roles):
        return [True] * len(records)
    looked_at = records if any(_depends_on_stored(role) for role in roles) else ()
    stored = await _stored(store, looked_at)
    return [any(_allows(role, record, stored.get(record.record_id)) for role in roles) for record in records]


def _depends_on_stored(role: Role) -> bool:
    return role.sites is not None and role.prefixes is None


def _allows(role: Role, record: Record, stored: Record | None) -> bool:
    return role.may_write(record) and (stored is None or not _depends_on_stored(role) or role.may_write(stored))


async def _stored(store: RecordStore, records: Iterable[Record]) -> Mapping[str, Record]:
    ids = list({record.record_id for record in records})
    documents = await store.documents(ids) if ids else dict[str, bytes]()
    return {record_id: decode_record(document) for record_id, document in documents.items()}


def updating_roles(principal: Principal | None, record_id: str) -> tuple[Role, ...] | None:
    """The roles by which a record of this id might be updated; None if it may be, whatever is stored."""
    if principal is None:
        return None
    roles = tuple(role for role in principal.having(Permission.UPDATE) if role.may_write_id(record_id))
    return None if any(role.sites is None and role.rows is None for role in roles) else roles


def may_update(roles: Iterable[Role], stored: Record) -> bool:
    """Whether one of the roles is about the stored record; one that is not seen is not updated either."""
    return any(role.may_write(stored) and role.shows(stored) for role in roles)
