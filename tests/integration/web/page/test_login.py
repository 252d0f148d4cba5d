"""Sessions of people: they begin with a token, end with it, and act only by forms that were made for them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from auditord.client import Client
from auditord.testing.daemon import running_daemon
from auditord.web.access.sessions import FILE
from auditord_builtin.access.tokens import StoredToken, TokenFile, new_token
from auditord_hookspecs import Component, Record
from tests.page_browser import Browser

NOW = datetime.now(UTC)
ROLES = {"own": {"permissions": ["read"], "rows": {"user_id": ["self"]}}}
SECTIONS = {"authenticators": {"tokens": {"kind": "tokens"}}, "access": {"roles": ROLES}}
CORES = (Component("Cores", 1, ()),)


@dataclass(frozen=True)
class Site:
    """A daemon."""

    url: str
    folder: Path
    tokens: Mapping[str, str]

    def revoke(self, name: str) -> None:
        TokenFile(self.folder / "state").change(lambda kept: [each for each in kept.values() if each.name != name])

    def new_token(self, name: str, *roles: str) -> str:
        stored, token = new_token(name, roles, NOW, None)
        TokenFile(self.folder / "state").change(lambda kept: [*kept.values(), stored])
        return token

    def browser(self) -> Browser:
        return Browser(self.url)


def made(folder: Path) -> Mapping[str, str]:
    (folder / "state").mkdir(mode=0o700)
    tokens = {"alice": new_token("alice", ["own"], NOW, None), "root": new_token("root", ["administrator"], NOW, None)}
    stored: list[StoredToken] = [each for each, _ in tokens.values()]
    TokenFile(folder / "state").change(lambda _: stored)
    return {name: token for name, (_, token) in tokens.items()}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("login")
    tokens = made(folder)
    with running_daemon(folder, SECTIONS) as daemon:
        records = [Record(f"{name}-1", NOW, CORES, NOW, {"user_id": (name,)}) for name in ("alice", "bob")]
        Client(daemon.url, token=tokens["root"]).add_all(records)
        yield Site(daemon.url, folder, tokens)


def test_who_is_not_known_is_led_to_the_login_and_back(site: Site) -> None:
    browser = site.browser()
    first = browser.get("/jobs?user=alice")
    assert (first.status, first.location) == (303, "/login?next=/jobs%3Fuser%3Dalice")
    form = browser.get(first.location)
    assert form.status == 200
    logged_in = browser.send("/login", {**form.fields("/login"), "token": site.tokens["alice"]})
    assert (logged_in.status, logged_in.location) == (303, "/jobs?user=alice")
    jobs = browser.get(logged_in.location)
    assert (jobs.status, "alice-1" in jobs.text, "bob" in jobs.text) == (200, True, False)
    assert "Usage of alice" in browser.get("/my").text


def test_programs_are_refused_as_before(site: Site) -> None:
    assert site.browser().get("/jobs", Accept="*/*").status == 401
    assert site.browser().get("/api/v1/records").status == 401


def test_the_cookie_is_kept_from_scripts_and_from_other_sites(site: Site) -> None:
    got = site.browser().log_in(site.tokens["alice"])
    (name,) = (name for name in got.cookies if not name.endswith("_form"))
    morsel = got.cookies[name]
    kept = (morsel["httponly"], morsel["samesite"], morsel["path"], morsel["max-age"], morsel["secure"])
    assert kept == (True, "Strict", "/", str(12 * 3_600), "")
    assert site.tokens["alice"] not in morsel.value
    assert (site.folder / "state" / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("token", ["", "wrong", "auditord_0_1", "\N{SNOWMAN}", "x" * 20_000])
def test_a_wrong_token_begins_no_session(site: Site, token: str) -> None:
    browser = site.browser()
    got = browser.log_in(token)
    assert (got.status, "This token is not accepted" in got.text) == (403, True)
    assert browser.get("/jobs").status == 303


def test_a_session_ends_with_its_token(site: Site) -> None:
    browser = site.browser()
    assert browser.log_in(site.new_token("carol", "reader")).status == 303
    assert browser.get("/jobs").status == 200
    site.revoke("carol")
    assert browser.get("/jobs").status == 303
    assert browser.get("/jobs", Accept="*/*").status == 401


def test_who_logs_out_ends_the_session_and_all_copies_of_it(site: Site) -> None:
    browser = site.browser()
    browser.log_in(site.tokens["alice"])
    page, copy = browser.get("/jobs"), Browser(site.url, dict(browser.cookies))
    assert copy.get("/jobs").status == 200
    assert browser.send("/logout", {}).status == 403  # a page of anywhere could have sent it
    assert browser.get("/jobs").status == 200
    left = browser.send("/logout", page.fields("/logout"))
    assert left.location == "/login"
    (gone,) = (morsel for morsel in left.cookies.values() if not morsel.value)
    assert (gone["max-age"], gone["path"], gone["samesite"], gone["httponly"]) == ("0", "/", "Strict", True)
    assert browser.get("/jobs").status == 303
    assert copy.get("/jobs").status == 303
    assert "Your session has ended" in copy.get("/login").text


def test_a_restart_keeps_sessions_and_those_that_ended(tmp_path: Path) -> None:
    tokens = made(tmp_path)
    with running_daemon(tmp_path, SECTIONS) as daemon:
        browser, left = Browser(daemon.url), Browser(daemon.url)
        browser.log_in(tokens["root"])
        left.log_in(tokens["root"])
        copy = dict(left.cookies)
        left.send("/logout", left.get("/jobs").fields("/logout"))
    with running_daemon(tmp_path, SECTIONS) as daemon:
        assert Browser(daemon.url, browser.cookies).get("/jobs").status == 200
        assert Browser(daemon.url, copy).get("/jobs").status == 303


def test_a_login_form_counts_in_the_browser_that_it_was_made_for(site: Site) -> None:
    fields = site.browser().get("/login").fields("/login")
    for browser in (site.browser(), site.browser()):
        got = browser.send("/login", {**fields, "token": site.tokens["alice"]})
        assert (got.status, "has expired" in got.text) == (403, True)
        browser.get("/login")  # a cookie of its own does not make it that one's
    assert site.browser().send("/login", {"token": site.tokens["alice"]}).status == 403


def test_what_a_page_of_another_server_sends_is_refused(site: Site) -> None:
    browser = site.browser()
    fields = browser.get("/login").fields("/login")
    for origin in ("https://evil.example.org", "null"):
        assert browser.send("/login", {**fields, "token": site.tokens["alice"]}, Origin=origin).status == 403


def test_the_cookie_opens_nothing_that_writes(site: Site) -> None:
    browser = site.browser()
    browser.log_in(site.tokens["root"])
    assert browser.get("/api/v1/records").status == 200  # the page leads there
    body = json.dumps({"ids": ["alice-1"], "reason": "a page of anywhere"})
    for method, path in (("POST", "/api/v1/deletions"), ("POST", "/api/v1/records"), ("PUT", "/record")):
        assert browser.ask(method, path, body, Content_Type="application/json").status == 401


def test_a_link_from_another_site_finds_the_session_by_asking_again(site: Site) -> None:
    got = site.browser().get("/usage?by=user", Sec_Fetch_Site="cross-site")  # browsers keep the cookie back then
    assert got.status == 200
    assert re.search(r'http-equiv="refresh" content="0; url=/usage\?by=user"', got.text)


@pytest.mark.parametrize(
    "target", ["//evil.example.org", "https://evil.example.org", "/\\evil", "javascript:1", "x", "/a\nb"]
)
def test_a_login_leads_to_no_other_server(site: Site, target: str) -> None:
    assert site.browser().log_in(site.tokens["alice"], target).location == "/"


def test_who_may_not_see_a_page_is_told_so(site: Site) -> None:
    browser = site.browser()
    browser.log_in(site.tokens["alice"])
    got = browser.get("/operations")
    assert (got.status, "none of your roles" in got.text, "Log out" in got.text) == (403, True, True)
