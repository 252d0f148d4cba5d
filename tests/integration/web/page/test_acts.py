"""Acts on the page: each is confirmed first, needs the form that was made for its sender, and is in the audit log."""

import json
import logging
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from types import ModuleType
from typing import Any

import pytest

from auditord.client import Client
from auditord.testing.daemon import running_daemon
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_hookspecs import (
    Batch,
    CollectorContext,
    CollectorKind,
    Component,
    PluginConfig,
    PluginContext,
    PluginKind,
    Quarantined,
    Record,
    RunConfig,
    hookimpl,
)
from tests.page_browser import Browser, Response

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
ROLES = ("operator", "administrator", "reader")


async def collect(config: RunConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    """One job that is new at every run, and one that nobody understands."""
    del config
    number = (context.checkpoint or 0) + 1
    job = Record(f"job-{number}", EPOCH, (Component("Cores", 4, ()),), EPOCH + timedelta(hours=1))
    odd = Quarantined(f"odd-{number}", {"number": number}, "has no <end>")
    yield Batch([job], [odd], checkpoint=number)


def convert(config: RunConfig, raw: Any) -> Record:  # Any: JSON
    del config
    return Record(f"mended-{raw['number']}", EPOCH, (), EPOCH)


async def report(config: PluginConfig, context: PluginContext) -> None:
    del config
    context.log.info("%s report", "would" if context.dry_run else "did")


def module() -> ModuleType:
    found = ModuleType("page_test_kinds")

    @hookimpl
    def auditord_collectors() -> Iterable[CollectorKind[Any]]:
        yield CollectorKind(name="jobs", config=RunConfig, collect=collect, convert=convert)

    @hookimpl
    def auditord_plugins() -> Iterable[PluginKind[Any]]:
        yield PluginKind(name="report", config=PluginConfig, run=report)

    found.auditord_collectors = auditord_collectors  # type: ignore[attr-defined] # that is how modules work
    found.auditord_plugins = auditord_plugins  # type: ignore[attr-defined] # the same
    return found


INSTANCES = {
    "collectors": {"jobs": {"kind": "jobs", "schedule": "0 0 1 1 *"}},
    "plugins": {"report": {"kind": "report", "schedule": "0 0 1 1 *", "run_at_start": True}},
}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Browser]]:
    """Somebody of each role, logged in."""
    folder = tmp_path_factory.mktemp("acts")
    (folder / "state").mkdir(mode=0o700)
    tokens = {role: new_token(f"a-{role}", [role], EPOCH, None) for role in ROLES}
    TokenFile(folder / "state").change(lambda _: [stored for stored, _ in tokens.values()])
    sections = {"authenticators": {"tokens": {"kind": "tokens"}}, **INSTANCES}
    with running_daemon(folder, sections, [module()]) as daemon:
        daemon.finish_run("jobs")
        opened = Record("open/1", EPOCH, (Component("Cores", 1, ()),), None, {"site_id": ("A",)})
        other = Record("job-1", EPOCH, (Component("Cores", 64, ()),), EPOCH + timedelta(hours=1))
        client = Client(daemon.url, token=tokens["administrator"][1])
        client.add_all([opened])
        client.add(other)
        browsers = {role: Browser(daemon.url) for role in ROLES}
        for role, browser in browsers.items():
            assert browser.log_in(tokens[role][1]).status == 303
        yield browsers


def confirmed(browser: Browser, path: str, **fields: str) -> Response:
    """Send the form of a confirmation."""
    asked = browser.get(path)
    assert asked.status == 200, asked.text
    action = path.partition("?")[0]
    return browser.send(action, {**asked.fields(action), **fields})


def ended(browser: Browser, run: Response) -> str:
    """The page of a run, once that is over."""
    assert run.status == 303, run.text
    deadline = monotonic() + 60
    while "Refresh" in (page := browser.get(run.location)).headers:
        assert monotonic() < deadline
        sleep(0.05)
    return page.text


def stored(browser: Browser, record_id: str) -> Any:  # Any: JSON
    return json.loads(browser.get(f"/api/v1/records/{record_id}").text)


def test_a_collector_runs_once_it_is_confirmed(people: dict[str, Browser], caplog: pytest.LogCaptureFixture) -> None:
    operator = people["operator"]
    assert "/operations/instances/jobs/run" in operator.get("/operations").text
    asked = operator.get("/operations/instances/jobs/run").text
    assert "continues from its checkpoint and stores what it finds" in asked
    with caplog.at_level(logging.INFO, logger="auditord.audit"):
        page = ended(operator, confirmed(operator, "/operations/instances/jobs/run"))
    assert ("has ended" in page, "tokens:a-operator" in page) == (True, True)
    acting = [json.loads(each.message) for each in caplog.records if '"acting"' in each.message]
    assert [(each["principal"], each["path"]) for each in acting] == [
        ("tokens:a-operator", "/operations/instances/jobs/run")
    ]


def test_a_dry_run_shows_what_would_be_and_keeps_nothing(people: dict[str, Browser]) -> None:
    operator = people["operator"]
    page = ended(operator, confirmed(operator, "/operations/instances/jobs/dry-run"))
    assert ("dry run" in page, "has no &lt;end&gt;" in page) == (True, True)
    shown = re.search(r"(job-\d+)\n", page)
    assert shown is not None
    assert f'"{shown[1]}"' not in operator.get("/api/v1/records").text
    assert "would report" in ended(operator, confirmed(operator, "/operations/instances/report/dry-run"))


def test_quarantined_entries_are_retried_and_forgotten(people: dict[str, Browser]) -> None:
    operator = people["operator"]
    for path in ("/", "/operations"):
        shown = operator.get(path).text
        assert "entries in quarantine are not accounted for: " in shown
        assert "Everything works" not in shown
        assert "Accounting is healthy" not in shown
    assert re.search(r"by reason.*<td>.*jobs.*has no &lt;end&gt;", operator.get("/operations").text, re.DOTALL)
    page = operator.get("/operations/quarantine?task=jobs").text
    numbers = re.findall(r'name="id" value="(\d+)"', page)
    assert ("has no &lt;end&gt;" in page, len(numbers) >= 1) == (True, True)
    assert (
        "Queued records: 1. Entries that left quarantine: 1."
        in confirmed(operator, f"/operations/quarantine/retry?id={numbers[0]}").text
    )
    ended(operator, confirmed(operator, "/operations/instances/jobs/run"))
    forgotten = confirmed(operator, "/operations/quarantine/discard?task=jobs").text
    assert re.search(r"Deleted entries: [1-9]", forgotten)
    assert "The quarantine is empty" in operator.get("/operations/quarantine").text
    assert "not accounted for" not in operator.get("/operations").text
    assert operator.get("/operations/quarantine/retry").status == 400


def test_operators_see_where_a_record_came_from_and_what_came_again(people: dict[str, Browser]) -> None:
    page = people["operator"].get("/jobs/job-1").text
    assert ("Origin" in page, "task:jobs" in page) == (True, True)
    assert ("Arrived again with different content" in page, "&#34;amount&#34;:64" in page) == (True, True)
    assert "Origin" not in people["reader"].get("/jobs/job-1").text
    assert '<a href="/jobs/job-1">job-1</a>' in people["operator"].get("/operations").text


def test_a_record_is_corrected_once_what_changes_was_looked_at(people: dict[str, Browser]) -> None:
    administrator, path = people["administrator"], "/jobs/job-1/correct"
    assert path in administrator.get("/jobs/job-1").text
    fields = administrator.get(path).fields(path)
    text = re.search(r"<textarea[^>]*>(.*?)</textarea>", administrator.get(path).text, re.DOTALL)
    assert text is not None
    changed = fields["seen"].replace('"amount": 4', '"amount": 5')
    assert changed != fields["seen"]
    looked = administrator.send(path, {**fields, "record": changed, "reason": "was five"})
    assert ("&#34;amount&#34;:5" in looked.text, looked.status) == (True, 200)
    assert stored(administrator, "job-1")["components"][0]["amount"] == 4
    sent = looked.fields(path)
    assert "was corrected" in administrator.send(path, sent).text
    assert stored(administrator, "job-1")["components"][0]["amount"] == 5
    record = administrator.get("/jobs/job-1").text
    assert ("was five" in record, "tokens:a-administrator" in record) == (True, True)
    again = administrator.send(path, {**sent, "record": changed.replace(": 5", ": 6")})  # somebody was faster
    assert (again.status, "changed since you loaded it" in again.text) == (409, True)


@pytest.mark.parametrize(("record", "error"), [("{}", "record_id"), ("no JSON", "malformed"), ("", "truncated")])
def test_a_correction_that_is_no_record_says_why_and_is_not_lost(
    people: dict[str, Browser], record: str, error: str
) -> None:
    path = "/jobs/job-1/correct"
    fields = people["administrator"].get(path).fields(path)
    got = people["administrator"].send(path, {**fields, "record": record, "reason": "why not"})
    assert (got.status, error in got.text, "why not" in got.text) == (422, True, True)


def test_an_open_record_is_closed_and_deleted(people: dict[str, Browser]) -> None:
    administrator = people["administrator"]
    path = "/jobs/open%2F1/close"
    wrong = confirmed(administrator, path, stop="yesterday", reason="it ended")
    assert (wrong.status, "is not a time such as" in wrong.text) == (422, True)
    assert confirmed(administrator, path, stop="2026-01-01T02:00", reason=" ").status == 422
    assert "was closed" in confirmed(administrator, path, stop="2026-01-01T02:00", reason="it ended").text
    assert stored(administrator, "open%2F1")["stop_time"] == "2026-01-01T02:00:00Z"
    assert administrator.get(path).status == 409
    assert "was deleted" in confirmed(administrator, "/jobs/open%2F1/delete", reason="a test").text
    assert administrator.get("/jobs/open%2F1").status == 404


ACTS = ["/operations/instances/report/run", "/operations/quarantine/discard", "/jobs/job-1/delete"]


@pytest.mark.parametrize("path", ACTS)
def test_no_form_of_anywhere_acts(people: dict[str, Browser], path: str) -> None:
    administrator = people["administrator"]
    stolen = people["operator"].get("/operations").fields("/logout")["proof"]
    for proof in ("", "wrong", stolen):
        got = administrator.send(path, {"proof": proof, "ids": "1", "reason": "forged"})
        assert (got.status, "from another session" in got.text) == (403, True)
    own = administrator.get("/operations").fields("/logout")["proof"]
    forged = administrator.send(path, {"proof": own, "ids": "1", "reason": "x"}, Origin="https://evil.example.org")
    assert forged.status == 403
    assert administrator.get("/jobs/job-1").status == 200


@pytest.mark.parametrize("path", ACTS)
def test_who_may_not_act_is_refused_and_sees_no_button(people: dict[str, Browser], path: str) -> None:
    reader = people["reader"]
    proof = reader.get("/").fields("/logout")["proof"]
    assert reader.get(path).status == 403
    assert reader.send(path, {"proof": proof, "ids": "1", "reason": "x"}).status == 403
    assert "/jobs/job-1/delete" not in reader.get("/jobs/job-1").text
    assert people["operator"].get("/jobs/job-1/delete").status == 403
