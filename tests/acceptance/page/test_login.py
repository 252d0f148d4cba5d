"""Login, logout, expiry and forged forms in a real browser, at a token's form and at an issuer on another site.

Screenshots go to the folder that AUDITORD_SCREENSHOTS names, else to pytest's own.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from anyio.from_thread import start_blocking_portal

from auditord.client import Client
from auditord.testing.daemon import running_daemon
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_hookspecs import Component, Record
from tests.chromium import SHAPES
from tests.oidc_issuer import CLIENT, SECRET, TestIssuer, serving
from tests.page_browser import Browser

SCREENSHOTS: Final = os.environ.get("AUDITORD_SCREENSHOTS")
NOW: Final = datetime.now(UTC)


@dataclass(frozen=True)
class Site:
    """A daemon, reached as ``localhost``, and an issuer at 127.0.0.1: two sites, as browsers see it."""

    url: str
    state_dir: Path
    token: str
    root: str


ACTS: Final = {
    "operations-acts": "/operations",
    "record-acts": "/jobs/slurm-1000",
    "run": "/operations/instances/reports/run",
    "correct": "/jobs/slurm-1000/correct",
    "delete": "/jobs/slurm-1000/delete",
    "close": "/jobs/slurm-open/close",
    "quarantine": "/operations/quarantine",
    "quarantine-empty": "/operations/quarantine?task=reports",
}


def jobs() -> Iterator[Record]:
    for number in range(120):
        stop = NOW - timedelta(hours=7 * number)
        used = (number * 37) % 100
        parts = (Component("Cores", 8, ()), Component("TotalCPU", 288 * used, ()), Component("Memory", 16_384, ()))
        peak = Component("MaxRSS", (1 << 30) * (1 + number % 9), ())
        user = "alice" if number % 2 else "bob"
        meta: dict[str, tuple[str, ...]] = {"site_id": ("KIT",), "group_id": ("hep",), "user_id": (user,)}
        yield Record(f"slurm-{1000 + number}", stop - timedelta(hours=1), (*parts, peak), stop, meta)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("login")
    (folder / "state").mkdir(mode=0o700)
    alice, root = (new_token(name, [role], NOW, None) for name, role in (("alice", "own"), ("root", "administrator")))
    TokenFile(folder / "state").change(lambda _: [alice[0], root[0]])
    issuer = TestIssuer(user={"sub": "7f3c", "preferred_username": "alice", "groups": ["/users"]})
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(issuer)):
        sso = {
            "kind": "jwt",
            "issuer": issuer.url,
            "audience": ["api"],
            "user_claim": "preferred_username",
            "login": {"client_id": CLIENT, "client_secret": SECRET, "title": "Example University"},
            "rules": [{"group": "/users", "roles": ["own"]}],
        }
        sections = {
            "ui": {"title": "A made-up site"},
            "authenticators": {"tokens": {"kind": "tokens"}, "sso": sso},
            "plugins": {"reports": {"kind": "utilisation", "schedule": "0 0 1 1 *"}},
            "access": {"roles": {"own": {"permissions": ["read"], "rows": {"user_id": ["self"]}}}},
        }
        with running_daemon(folder, sections) as daemon:
            client = Client(daemon.url, token=root[1])
            client.add_all([*jobs(), Record("slurm-open", NOW, (Component("Cores", 8, ()),))])
            quarantine_bodies(daemon.url, root[1])
            yield Site(daemon.url.replace("127.0.0.1", "localhost"), folder / "state", alice[1], root[1])


def quarantine_bodies(url: str, token: str) -> None:
    """Send what cannot be stored, so that the quarantine has entries."""
    sender = Browser(url, headers={"Authorization": f"Bearer {token}"})
    for body in ('{"record_id": "half"', "<records/>"):
        assert sender.ask("POST", "/record", body, Content_Type="application/json").status == 400


def log_in(page: Any, site: Site, token: str | None = None) -> None:  # Any: an extra's
    page.fill("input[name=token]", token or site.token)
    follow(page, "form.stacked button")


def follow(page: Any, selector: str) -> None:  # Any: an extra's
    """Click, and wait until the next page is loaded: Playwright's ``click`` returns before its rows are there."""
    with page.expect_navigation():
        page.click(selector)


@pytest.mark.parametrize("shape", SHAPES)
def test_login_and_my_usage_fit_the_screen_and_have_no_serious_barrier(
    browser: Any, site: Site, shape: str, tmp_path: Path
) -> None:  # Any: an extra's
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    folder = Path(SCREENSHOTS or tmp_path)
    folder.mkdir(exist_ok=True)
    page = browser.new_context(bypass_csp=True, **SHAPES[shape]).new_page()

    def looked_at(name: str) -> None:
        page.screenshot(path=str(folder / f"{name}-{shape}.png"), full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= SHAPES[shape]["viewport"]["width"], name
        found = axe.run(page).response["violations"]
        assert [each["id"] for each in found if each["impact"] in {"serious", "critical"}] == [], name

    page.goto(f"{site.url}/my?period=90-days")
    looked_at("login")
    if shape == "desktop":
        log_in(page, site, "wrong")
        looked_at("login-refused")
    log_in(page, site)
    assert page.url == f"{site.url}/my?period=90-days"
    looked_at("my")
    follow(page, "text=Log out")
    page.goto(f"{site.url}/operations")
    log_in(page, site, site.root)
    for name, path in ACTS.items():
        page.goto(site.url + path)
        looked_at(name)
    page.context.close()


def test_a_session_is_kept_from_scripts_and_ends_with_the_logout(browser: Any, site: Site) -> None:  # Any: see above
    page = browser.new_page()
    page.goto(f"{site.url}/jobs?user=alice")
    log_in(page, site)
    assert page.url == f"{site.url}/jobs?user=alice"
    assert page.locator("tbody tr").count() == 50
    assert "bob" not in page.content()
    assert page.evaluate("document.cookie") == ""
    kept = page.context.cookies()
    follow(page, "text=Log out")
    assert page.url == f"{site.url}/login"
    page.context.add_cookies(kept)  # a copy of the cookie opens nothing
    page.goto(f"{site.url}/jobs")
    assert page.url.startswith(f"{site.url}/login?next=")
    page.context.close()


def test_a_login_link_fills_in_the_token_and_leaves_no_trace(browser: Any, site: Site) -> None:  # Any: see above
    page = browser.new_page()
    asked: list[str] = []

    def note(request: Any) -> None:  # Any: an extra's
        asked.append(request.url)

    page.on("request", note)
    page.goto(f"{site.url}/#token={site.token}")  # which leads to the login
    page.wait_for_function("document.querySelector('input[name=token]').value !== ''")
    assert page.url == f"{site.url}/login?next=/"
    follow(page, "form.stacked button")
    assert page.url == f"{site.url}/"
    assert "alice" in page.inner_text("body")
    assert [url for url in asked[1:] if site.token in url.partition("#")[0]] == []
    page.context.close()


def test_an_issuer_on_another_site_leads_back_into_a_session(browser: Any, site: Site) -> None:  # Any: see above
    page = browser.new_page()
    page.goto(f"{site.url}/my")
    page.click("text=Log in with Example University")
    page.wait_for_url(f"{site.url}/my")
    assert page.locator("h1").inner_text() == "Usage of alice"
    page.click("text=Log out")
    page.wait_for_url(f"{site.url}/login")  # by way of the page of the logout
    page.goto(f"{site.url}/my")
    assert page.url.startswith(f"{site.url}/login?next=")
    page.context.close()


def test_a_link_of_another_site_opens_the_page_and_its_form_does_nothing(browser: Any, site: Site) -> None:  # Any: same
    page = browser.new_page()
    page.goto(f"{site.url}/login")
    log_in(page, site)
    link = f'<a id="link" href="{site.url}/my">look</a>'
    form = f'<form method="post" action="{site.url}/logout"><button id="forged">go</button></form>'
    foreign = site.url.replace("localhost", "127.0.0.1")

    def answer(route: Any) -> None:  # Any: see above
        route.fulfill(body=link + form, content_type="text/html")

    page.route(f"{foreign}/foreign", answer)
    page.goto(f"{foreign}/foreign")
    follow(page, "#forged")
    assert "may not send requests to this one" in page.content()
    page.goto(f"{foreign}/foreign")
    page.click("#link")
    page.wait_for_selector("text=Usage of alice")  # the session is still there, and the link finds it
    page.context.close()


def test_a_session_that_has_ended_says_so(browser: Any, site: Site) -> None:  # Any: see above
    page = browser.new_page()
    page.goto(f"{site.url}/login")
    stored, token = new_token("carol", ["reader"], NOW, None)
    TokenFile(site.state_dir).change(lambda kept: [*kept.values(), stored])
    log_in(page, site, token)
    page.goto(f"{site.url}/usage")
    assert page.locator("h1").inner_text() == "Core hours"
    TokenFile(site.state_dir).change(lambda kept: [each for each in kept.values() if each.name != "carol"])
    page.goto(f"{site.url}/usage")
    assert page.url == f"{site.url}/login?next=/usage"
    page.context.close()
