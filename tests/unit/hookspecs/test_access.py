"""Roles and principals: what one role allows is allowed, and its limits are its own."""

from datetime import UTC, datetime

import pytest

from auditord_hookspecs import Credentials, Permission, Principal, Record, Role
from auditord_hookspecs.query import AllOf, AnyOf, MetaContainsAny

READ, WRITE, UPDATE = Permission.READ, Permission.WRITE, Permission.UPDATE


def record(record_id: str = "kit-1", **meta: tuple[str, ...]) -> Record:
    return Record(record_id, datetime(2026, 1, 1, tzinfo=UTC), (), None, meta or None)


def role(*permissions: Permission, **rows: tuple[str, ...]) -> Role:
    return Role(frozenset(permissions), rows=rows or None)


def test_without_a_reading_role_nothing_is_visible() -> None:
    assert Principal("x:y", (role(WRITE),)).visible() == AnyOf()


def test_a_role_without_rows_shows_everything() -> None:
    assert Principal("x:y", (role(READ), role(READ, site_id=("A",)))).visible() is None


def test_a_role_that_may_not_read_lifts_no_limit() -> None:
    limited = Principal("x:y", (role(WRITE), role(READ, site_id=("A",))))
    assert limited.visible() == AllOf((MetaContainsAny("site_id", ("A",)),))


def test_limits_of_two_roles_do_not_mix() -> None:
    both = Principal("x:y", (role(READ, site_id=("A",), group_id=("g",)), role(READ, site_id=("B",), group_id=("h",))))
    shown = both.visible()
    assert isinstance(shown, AnyOf)
    assert [len(each.conditions) for each in shown.conditions if isinstance(each, AllOf)] == [2, 2]


@pytest.mark.parametrize(
    ("written", "allowed"),
    [
        (record(site_id=("KIT",)), True),
        (record(site=("KIT",)), True),
        (record(site_id=("KIT", "DESY")), False),
        (record(site_id=("KIT",), site=("DESY",)), False),
        (record(site_id=("DESY",)), False),
        (record(), False),
        (record(group_id=("KIT",)), False),
        (record("desy-1", site_id=("KIT",)), False),
    ],
)
def test_a_collector_writes_its_own_site_and_prefix_only(written: Record, allowed: bool) -> None:  # noqa: FBT001 a table
    own = Role(frozenset({WRITE}), sites=("KIT",), prefixes=("kit-",))
    assert own.may_write(written) is allowed


@pytest.mark.parametrize("permission", [Permission.METRICS, Permission.OPERATE, Permission.ADMINISTER])
@pytest.mark.parametrize("limits", [{"rows": {"site_id": ("A",)}}, {"sites": ("A",)}, {"prefixes": ("a-",)}])
def test_what_is_about_the_whole_daemon_cannot_be_limited(
    permission: Permission, limits: dict[str, tuple[str, ...]]
) -> None:
    with pytest.raises(ValueError, match=permission.value):
        Role(frozenset({permission}), **limits)  # type: ignore[arg-type] # rows is a mapping, in one of the rows


def test_self_is_the_callers_user_name_and_nobody_without_one() -> None:
    own = role(READ, user_id=("self", "shared"), site_id=("A",))
    assert own.is_personal
    alice = own.of_user("alice")
    assert (alice.rows, alice.is_personal) == ({"user_id": ("alice", "shared"), "site_id": ("A",)}, False)
    assert alice.shows(record(user_id=("alice",), site_id=("A",)))
    assert not alice.shows(record(user_id=("self",), site_id=("A",)))
    nobody = role(READ, user_id=("self",)).of_user(None)
    assert nobody.visible() == AllOf((MetaContainsAny("user_id", ()),))
    assert not nobody.shows(record(user_id=("self",)))
    assert not nobody.shows(record())


def test_a_role_without_self_is_the_same_for_everybody() -> None:
    some = role(READ, site_id=("A",))
    assert some.of_user("self") is some


def test_a_token_is_not_shown() -> None:
    assert "hidden" not in repr(Credentials(token="hidden"))  # noqa: S106 a token of the test
