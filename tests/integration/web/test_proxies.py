"""A daemon behind a proxy: the client's own address, https and host count, and nobody else can write them."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pytest
from anyio.from_thread import start_blocking_portal

from auditord.testing.daemon import running_daemon
from auditord_builtin.access.tokens import TokenFile, new_token
from tests.access_callers import Caller, tcp
from tests.access_callers import Site as Called
from tests.oidc_issuer import CLIENT, SECRET, TestIssuer, serving
from tests.other_user import IS_ROOT
from tests.page_browser import Browser, Response

NOW: Final = datetime.now(UTC)
PROXY: Final = "127.0.0.3"
OTHER: Final = "127.0.0.2"
PUBLIC: Final = "accounting.example.org"
PASSED_ON: Final = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https", "X-Forwarded-Host": PUBLIC}


@dataclass(frozen=True)
class Site:
    """A daemon that knows a proxy at :data:`PROXY`."""

    url: str
    token: str
    socket: Path

    def browser(self, source: str, **changed: str) -> Browser:
        headers = PASSED_ON | {name.replace("_", "-"): value for name, value in changed.items()}
        return Browser(self.url, headers=headers, source=source)

    def status(self, source: str, headers: dict[str, str]) -> int:
        """The answer to a monitor's question, by somebody without a token."""
        called = Called(self.url, self.socket, {}, {"": lambda: tcp(urlsplit(self.url).port or 0, source)})
        return Caller(called, None, "").ask("GET", "/metrics", headers=headers).status


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("proxied")
    (folder / "state").mkdir(mode=0o700)
    stored, token = new_token("root", ["administrator"], NOW, None)
    TokenFile(folder / "state").change(lambda _: [stored])
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(TestIssuer())) as issuer:
        sso = {
            "kind": "jwt",
            "issuer": issuer.url,
            "audience": ["api"],
            "login": {"client_id": CLIENT, "client_secret": SECRET},
            "rules": [{"group": "/users", "roles": ["reader"]}],
        }
        hosts = {
            "kind": "networks",
            "rules": [{"network": each, "roles": ["monitor"]} for each in ("192.0.2.7", PROXY)],
        }
        users = {"kind": "unix_users", "rules": [{"user": "root", "roles": ["administrator"]}]}
        listen = ["127.0.0.1:0", f"unix:{folder}/api.sock"]
        sections = {
            "api": {"listen": listen, "proxies": [PROXY, "unix"]},
            "ui": {"root_path": "/accounting"},
            "authenticators": {"tokens": {"kind": "tokens"}, "sso": sso, "hosts": hosts, "users": users},
        }
        with running_daemon(folder, sections) as daemon:
            yield Site(daemon.url, token, folder / "api.sock")


def session_cookie(got: Response) -> tuple[str, str]:
    """Its name without the daemon's own part, and its attribute ``Secure``."""
    ((name, morsel),) = ((name, each) for name, each in got.cookies.items() if not name.endswith(("_form", "_login")))
    return name.partition("auditord_")[0], str(morsel["secure"])


def test_sessions_behind_https_are_kept_for_https(site: Site) -> None:
    browser = site.browser(PROXY)
    got = browser.ask("GET", "/login?next=/")
    fields = got.fields("/accounting/login")
    logged_in = browser.send("/login", {**fields, "token": site.token}, Origin=f"https://{PUBLIC}")
    assert (logged_in.status, logged_in.location) == (303, "/accounting/")
    assert {str(each["secure"]) for each in logged_in.cookies.values()} == {"True"}
    assert browser.get("/usage").status == 200


def test_the_issuer_leads_back_to_the_host_that_the_browser_knows(site: Site) -> None:
    begun = site.browser(PROXY).get("/login/sso?next=/my")
    assert begun.status == 303
    (redirect,) = parse_qs(urlsplit(begun.location).query)["redirect_uri"]
    assert redirect == f"https://{PUBLIC}/accounting/login/sso/callback"


def test_headers_of_others_change_nothing(site: Site) -> None:
    browser = site.browser(OTHER)
    fields = browser.get("/login?next=/").fields("/accounting/login")
    logged_in = browser.send("/login", {**fields, "token": site.token}, Origin=site.url)
    assert logged_in.status == 303
    assert session_cookie(logged_in) == ("", "")
    (redirect,) = parse_qs(urlsplit(browser.get("/login/sso?next=/my").location).query)["redirect_uri"]
    assert redirect == f"{site.url}/accounting/login/sso/callback"
    assert browser.send("/login", fields, Origin=f"https://{PUBLIC}").status == 403


def test_forms_of_other_pages_are_refused_behind_a_proxy(site: Site) -> None:
    browser = site.browser(PROXY)
    fields = browser.get("/login?next=/").fields("/accounting/login")
    for origin in ("https://evil.example", site.url):
        assert browser.send("/login", {**fields, "token": site.token}, Origin=origin).status == 403


def test_an_address_counts_only_as_a_proxy_tells_it(site: Site) -> None:
    trusted = {"X-Forwarded-For": "192.0.2.7"}
    assert site.status(PROXY, trusted) == 200
    assert site.status(PROXY, {"X-Forwarded-For": "192.0.2.7, 192.0.2.8"}) == 401
    assert site.status(OTHER, trusted) == 401
    assert site.status(OTHER, {"Forwarded": "for=192.0.2.7"}) == 401


def test_a_proxys_own_address_is_not_its_clients(site: Site) -> None:
    assert site.status(PROXY, {}) == 200  # it asks for itself
    assert site.status(PROXY, {"X-Forwarded-For": "192.0.2.8"}) == 401
    assert site.status(PROXY, {"X-Forwarded-Proto": "https"}) == 401


@pytest.mark.skipif(not IS_ROOT, reason="the rule of this test is about root")
def test_a_proxys_own_user_is_not_its_clients(site: Site) -> None:
    from tests.access_callers import unix  # noqa: PLC0415 beside its only use

    called = Called(site.url, site.socket, {}, {"": lambda: unix(site.socket)})
    assert Caller(called, None, "").ask("GET", "/metrics").status == 200
    assert Caller(called, None, "").ask("GET", "/metrics", headers={"X-Forwarded-For": "192.0.2.8"}).status == 401
    assert Caller(called, None, "").ask("GET", "/metrics", headers={"X-Forwarded-For": "192.0.2.7"}).status == 200


def test_bytes_that_are_no_text_stand_in_no_ones_way(site: Site) -> None:
    assert site.status(PROXY, {**PASSED_ON, "User-Agent": "\xff"}) == 200


def test_the_audit_log_names_the_client(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "auditord.audit")
    for source in (PROXY, OTHER):
        site.status(source, {"X-Forwarded-For": "127.0.0.1, 192.0.2.8"})
    lines = [json.loads(line.getMessage()) for line in caplog.records if line.name == "auditord.audit"]
    assert [each["from"] for each in lines] == ["192.0.2.8", OTHER]


def test_whole_lists_come_through(site: Site) -> None:
    got = site.browser(PROXY, Authorization=f"Bearer {site.token}").get("/api/v1/records")
    assert (got.status, json.loads(got.text)["records"]) == (200, [])
