"""Certificates, local users and addresses: who fits which rule, and who must not."""

import grp
import os
import pwd
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from auditord.web.access.authorisation import HostAuthenticatorContext
from auditord_builtin.access import connections
from auditord_builtin.access.connections import fits
from auditord_hookspecs import Authenticate, AuthenticatorKind, Certificate, Credentials, Identity, UnixPeer

pytestmark = pytest.mark.anyio

CE = Certificate(
    ("ce.example.org",),
    "CN=ce.example.org,O=KIT,C=DE",
    "/C=DE/O=KIT/CN=ce.example.org",
    ("ce.example.org", "ce-alias.example.org", "mail@example.org"),
)


def opened(
    kind: AuthenticatorKind[Any], *rules: dict[str, Any], **options: object
) -> AbstractAsyncContextManager[Authenticate]:
    config = kind.config.model_validate({"rules": [{"roles": ["reader"], **rule} for rule in rules], **options})
    context = HostAuthenticatorContext("who", kind.name, _never, state_dir=Path("/nonexistent"))
    return kind.open(config, context)


def _never() -> Any:
    raise AssertionError("nobody needs to know the time")


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("ce.example.org", "ce.example.org", True),
        ("ce.example.org", "ceXexample.org", False),
        ("ce.example.org", "ce.example.org.evil.net", False),
        ("ce.example.org", "CE.example.org", False),
        ("*.example.org", "a.b.example.org", True),
        ("*.example.org", "example.org", False),
        ("a*c*e", "abcde", True),
        ("a*c*e", "abcd", False),
        ("[a-z]+", "b", False),
        ("*", "", True),
        ("*", "two\nlines", True),
    ],
)
def test_patterns_are_literal_but_for_asterisks(pattern: str, text: str, expected: bool) -> None:  # noqa: FBT001 a table
    assert fits(pattern, text) is expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"common_name": "ce.example.org"}, True),
        ({"common_name": "*.example.org"}, True),
        ({"common_name": "ce"}, False),
        ({"subject": "/C=DE/O=KIT/CN=*"}, True),
        ({"subject": "CN=*,O=KIT,C=DE"}, True),
        ({"subject": "/C=DE/O=DESY/CN=*"}, False),
        ({"alternative_name": "ce-alias.example.org"}, True),
        ({"alternative_name": "mail@*"}, True),
        ({"alternative_name": "other"}, False),
        ({"common_name": "ce.example.org", "subject": "/C=FR/*"}, False),
        ({"common_name": "ce.example.org", "alternative_name": "ce-alias*"}, True),
    ],
    ids=str,
)
async def test_a_certificate_fits_all_that_a_rule_says(rule: dict[str, str], expected: bool) -> None:  # noqa: FBT001 same
    async with opened(connections.CERTIFICATES, rule) as authenticate:
        found = await authenticate(Credentials("192.0.2.1", certificate=CE))
    assert found == (Identity(CE.subject, ("reader",)) if expected else None)


@pytest.mark.parametrize(
    ("option", "user"),
    [("common_name", "ce.example.org"), ("subject", CE.subject), ("grid_subject", CE.grid_subject), (None, None)],
)
async def test_a_certificate_names_its_user_as_configured(option: str | None, user: str | None) -> None:
    async with opened(connections.CERTIFICATES, {"subject": "*"}, user=option) as authenticate:
        assert await authenticate(Credentials(certificate=CE)) == Identity(CE.subject, ("reader",), user)
        found = await authenticate(Credentials(certificate=replace(CE, common_names=("alice", "proxy"))))
        assert found is not None
        assert found.user == (None if option == "common_name" else user)


async def test_without_a_certificate_nobody_is_known() -> None:
    async with opened(connections.CERTIFICATES, {"subject": "*"}) as authenticate:
        assert await authenticate(Credentials("127.0.0.1", peer=UnixPeer(0, 0))) is None


async def test_the_roles_of_all_rules_that_fit_add_up() -> None:
    rules = ({"common_name": "ce*"}, {"subject": "*", "roles": ["writer", "reader"]}, {"common_name": "x"})
    async with opened(connections.CERTIFICATES, *rules) as authenticate:
        found = await authenticate(Credentials(certificate=CE))
    assert found is not None
    assert found.roles == ("reader", "writer")


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("128.0.0.1", False), ("::1", True), ("::2", False), (None, False)],
)
async def test_addresses(address: str | None, expected: bool) -> None:  # noqa: FBT001 a table
    async with opened(connections.NETWORKS, {"network": "127.0.0.0/8"}, {"network": "::1"}) as authenticate:
        assert (await authenticate(Credentials(address)) is not None) is expected


async def test_a_wrong_token_is_not_made_good_by_an_address() -> None:
    async with opened(connections.NETWORKS, {"network": "127.0.0.0/8"}) as authenticate:
        assert await authenticate(Credentials("127.0.0.1", token="wrong")) is None  # noqa: S106 a token of the test


async def test_local_users_and_groups() -> None:
    root, group = pwd.getpwuid(0).pw_name, grp.getgrgid(os.getgid()).gr_name
    rules = ({"user": root}, {"group": group, "roles": ["writer"]}, {"user": "4711", "roles": ["monitor"]})
    async with opened(connections.UNIX_USERS, *rules) as authenticate:
        assert await authenticate(Credentials(peer=UnixPeer(0, 9_999))) == Identity(root, ("reader",), root)
        assert await authenticate(Credentials(peer=UnixPeer(4711, 9_999))) == Identity("4711", ("monitor",))
        for peer in (UnixPeer(5, os.getgid()), UnixPeer(5, 9_999, frozenset({os.getgid(), 7}))):
            assert await authenticate(Credentials(peer=peer)) == Identity("5", ("writer",), pwd.getpwuid(5).pw_name)
        assert await authenticate(Credentials(peer=UnixPeer(5, 9_999, frozenset({7})))) is None
        assert await authenticate(Credentials("127.0.0.1")) is None


@pytest.mark.parametrize("rule", [{"user": "nobody-of-this-name"}, {"group": "no-such-group"}])
async def test_a_user_whom_the_host_does_not_know_stops_the_start(rule: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="this host has no"):
        async with opened(connections.UNIX_USERS, rule):
            raise AssertionError


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (connections.CERTIFICATES, {}),
        (connections.UNIX_USERS, {}),
        (connections.UNIX_USERS, {"user": "a", "group": "b"}),
        (connections.NETWORKS, {"network": "localhost"}),
        (connections.NETWORKS, {"network": "10.0.0.1/8"}),
        (connections.NETWORKS, {"network": "127.0.0.0/8", "roles": []}),
    ],
    ids=lambda each: str(getattr(each, "name", each)),
)
def test_a_rule_that_could_be_misread_is_refused(kind: AuthenticatorKind[Any], rule: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rules"):
        kind.config.model_validate({"rules": [{"roles": ["reader"], **rule}]})
