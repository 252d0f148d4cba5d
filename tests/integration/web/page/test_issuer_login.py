"""People log in at an issuer, see their own records, and log out there as well."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from anyio.from_thread import start_blocking_portal

from auditord.client import Client
from auditord.testing.daemon import running_daemon
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_hookspecs import Component, Record
from tests.oidc_issuer import CLIENT, SECRET, TestIssuer, serving
from tests.page_browser import Browser, Response

NOW = datetime.now(UTC)


@dataclass(frozen=True)
class Site:
    """A daemon, and the issuer at which its users log in."""

    url: str
    issuer: TestIssuer

    def came_back(self, browser: Browser, target: str = "/my") -> str:
        """The address to which the issuer sends the browser."""
        begun = browser.get(f"/login/sso?next={target}")
        assert begun.status == 303
        at_issuer = Browser(self.issuer.url).get(begun.location.removeprefix(self.issuer.url))
        assert at_issuer.location.startswith(f"{self.url}/login/sso/callback?")
        return at_issuer.location.removeprefix(self.url)

    def log_in(self, browser: Browser, target: str = "/my") -> Response:
        return browser.get(self.came_back(browser, target), Sec_Fetch_Site="cross-site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("sso")
    (folder / "state").mkdir(mode=0o700)
    stored, root = new_token("root", ["administrator"], NOW, None)
    TokenFile(folder / "state").change(lambda _: [stored])
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(TestIssuer())) as issuer:
        issuer.user["groups"] = ["/users/hep"]
        sso = {
            "kind": "jwt",
            "issuer": issuer.url,
            "audience": ["api"],
            "user_claim": "preferred_username",
            "login": {"client_id": CLIENT, "client_secret": SECRET, "title": "Example SSO"},
            "rules": [{"group": "/users/*", "roles": ["own"]}],
        }
        roles = {"own": {"permissions": ["read"], "rows": {"user_id": ["self"]}}}
        sections = {"authenticators": {"tokens": {"kind": "tokens"}, "sso": sso}, "access": {"roles": roles}}
        with running_daemon(folder, sections) as daemon:
            records = [
                Record(f"{name}-1", NOW, (Component("Cores", 1, ()),), NOW, {"user_id": (name,)})
                for name in ("alice", "bob")
            ]
            Client(daemon.url, token=root).add_all(records)
            yield Site(daemon.url, issuer)


def test_people_log_in_at_the_issuer_and_see_their_own_records(site: Site) -> None:
    browser = Browser(site.url)
    assert "Log in with Example SSO" in browser.get("/login?next=/my").text
    got = site.log_in(browser)
    assert (got.status, 'content="0; url=/my"' in got.text) == (200, True)
    assert {morsel["samesite"] for morsel in got.cookies.values() if morsel["max-age"] != "0"} == {"Strict"}
    assert "Usage of alice" in browser.get("/my").text
    jobs = browser.get("/jobs").text
    assert ("alice-1" in jobs, "bob" in jobs) == (True, False)
    assert "bob" not in browser.get("/api/v1/records").text
    assert browser.get("/operations").status == 403


def test_who_logs_out_is_led_to_the_issuers_logout(site: Site) -> None:
    browser = Browser(site.url)
    site.log_in(browser)
    got = browser.send("/logout", browser.get("/my").fields("/logout"))
    target = re.search(r'content="0; url=([^"]+)"', got.text)
    assert target is not None
    url = target[1].replace("&amp;", "&")
    assert url.startswith(f"{site.issuer.url}/logout?client_id={CLIENT}")
    there = Browser(site.issuer.url).get(url.removeprefix(site.issuer.url))
    assert there.location == f"{site.url}/login"
    assert browser.get("/my").status == 303


def test_the_way_back_counts_once_and_in_the_browser_that_began(site: Site) -> None:
    browser = Browser(site.url)
    back = site.came_back(browser)
    for other in (Browser(site.url), browser):
        assert browser.get(back).status == 200 if other is browser else other.get(back).status == 403
    replayed = browser.get(back)
    assert (replayed.status, "The login failed" in replayed.text) == (403, True)


@pytest.mark.parametrize(
    ("old", "new"), [(r"state=[^&]+", "state=another"), (r"code=[^&]+", "code=another"), (r"code=[^&]+", "")]
)
def test_a_way_back_that_was_changed_begins_no_session(site: Site, old: str, new: str) -> None:
    browser = Browser(site.url)
    back = site.came_back(browser)
    got = browser.get(re.sub(old, new, back))
    assert (got.status, "The login failed" in got.text) == (403, True)
    assert browser.get("/my").status == 303


def test_a_wrong_nonce_and_an_issuer_that_is_away(site: Site) -> None:
    browser = Browser(site.url)
    site.issuer.changed["nonce"] = "another"
    assert site.log_in(browser).status == 403
    site.issuer.changed.clear()
    site.issuer.away = True
    got = site.log_in(browser)
    site.issuer.away = False
    assert (got.status, "is unavailable" in got.text) == (503, True)
    assert site.log_in(browser).status == 200


def test_a_session_knows_only_what_the_rules_know(site: Site) -> None:
    browser = Browser(site.url)
    site.issuer.user["groups"] = ["/others"]
    assert site.log_in(browser).status == 403
    site.issuer.user["groups"] = ["/users/hep", *(f"/a/long/name/of/a/group/{number}" for number in range(500))]
    assert site.log_in(browser).status == 200
    assert browser.get("/my").status == 200


@pytest.mark.parametrize("path", ["/login/tokens", "/login/nobody", "/login/nobody/callback?code=1&state=2"])
def test_there_are_no_other_logins(site: Site, path: str) -> None:
    assert Browser(site.url).get(path).status == 404


def test_a_login_leads_to_no_other_server(site: Site) -> None:
    got = site.log_in(Browser(site.url), "https://evil.example.org")
    assert 'content="0; url=/"' in got.text
    assert urlsplit(site.url).hostname == "127.0.0.1"
