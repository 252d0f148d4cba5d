"""Headers of proxies: whose word counts, and which word."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from pydantic import ValidationError

from auditord.config.model import ApiSection
from auditord.web.proxies import Proxies, is_passed_on

PROXY: Final = ("10.0.0.1", 40_000)
NAMED: Final = ["10.0.0.0/8", "2001:db8::1"]
PASSED_ON: Final = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "a.example"}


def request(headers: Mapping[str, str], peer: object = PROXY) -> web.BaseRequest:
    transport = Mock()
    transport.get_extra_info.side_effect = {"peername": peer}.get
    return make_mocked_request("GET", "/x?y", headers={"Host": "inner:8000", **headers}, transport=transport)


def seen(asked: web.BaseRequest, named: Sequence[str] = NAMED, form: Any = "x-forwarded") -> tuple[object, ...]:
    got = Proxies(named, form).see_through(asked)
    return is_passed_on(got), got.remote, got.scheme, got.headers["Host"]


def test_a_named_proxy_says_who_asks_for_which_host_and_by_https() -> None:
    assert seen(request(PASSED_ON)) == (True, "192.0.2.7", "https", "a.example")
    assert seen(request(PASSED_ON, ("::ffff:10.0.0.1", 1, 0, 0))) == (True, "192.0.2.7", "https", "a.example")
    assert seen(request(PASSED_ON, "/run/api.sock"), ["unix"]) == (True, "192.0.2.7", "https", "a.example")


@pytest.mark.parametrize("peer", [("192.0.2.9", 1), ("2001:db8::2", 1, 0, 0), "/run/api.sock", "", None])
@pytest.mark.parametrize("headers", [PASSED_ON, {"Forwarded": "for=10.0.0.2;proto=https;host=a.example"}])
def test_the_word_of_nobody_else_changes_anything(peer: object, headers: Mapping[str, str]) -> None:
    asked = request(headers, peer)
    for form in ("x-forwarded", "forwarded"):
        assert Proxies(NAMED, form).see_through(asked) is asked
        assert seen(asked, NAMED, form)[2:] == ("http", "inner:8000")


def test_only_the_form_that_was_chosen_is_read() -> None:
    both = {**PASSED_ON, "Forwarded": 'for="[2001:db8::9]:4711";proto=http;host=b.example'}
    assert seen(request(both)) == (True, "192.0.2.7", "https", "a.example")
    assert seen(request(both), form="forwarded") == (True, "2001:db8::9", "http", "b.example")
    asked = request(PASSED_ON)
    assert Proxies(NAMED, "forwarded").see_through(asked) is asked


def test_a_proxy_that_asks_for_itself_is_itself() -> None:
    asked = request({})
    assert Proxies(NAMED, "x-forwarded").see_through(asked) is asked


@pytest.mark.parametrize(
    ("said", "client"),
    [
        ("127.0.0.1, 198.51.100.1, 192.0.2.7", "192.0.2.7"),  # the client wrote the first ones itself
        ("192.0.2.7, 10.3.3.3, 2001:db8::1", "192.0.2.7"),  # a chain of named proxies
        ("10.9.9.9, 10.3.3.3", "10.9.9.9"),
        ("192.0.2.7:4711", "192.0.2.7"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
        ("2001:db8::7", "2001:db8::7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("192.0.2.7, evil", "unknown"),
        ("192.0.2.7,", "unknown"),
        ("192.0.2.7, _hidden, 10.3.3.3", "unknown"),
        ("999.1.1.1", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_last_address_that_is_no_proxys_is_the_client(said: str, client: str) -> None:
    assert seen(request({"X-Forwarded-For": said}))[1] == client
    hops = ", ".join(f'for="{each.strip()}"' for each in said.split(","))
    assert seen(request({"Forwarded": hops}), form="forwarded")[1] == client


def test_the_last_of_several_schemes_and_hosts_counts() -> None:
    said = {"X-Forwarded-Proto": "https, http", "X-Forwarded-Host": "evil.example, a.example:8443"}
    assert seen(request(said)) == (True, "unknown", "http", "a.example:8443")


@pytest.mark.parametrize("host", ["a/b", "a b", "user@a", "x" * 300, "[::1", "a\\b", 'a"'])
def test_what_is_no_host_or_scheme_is_not_taken_over(host: str) -> None:
    assert seen(request({"X-Forwarded-Host": host, "X-Forwarded-Proto": "gopher"}))[2:] == ("http", "inner:8000")


@pytest.mark.parametrize("wrong", ["10.0.0.1/8", "proxy.example", "0.0.0.0/0", "::/0"])
def test_a_name_that_is_no_address_is_refused_and_so_is_every_address(wrong: str) -> None:
    with pytest.raises(ValidationError, match=r"write an address|every address"):
        ApiSection.model_validate({"proxies": [wrong]})
