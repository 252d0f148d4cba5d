"""Refusals: what they say, and that they say nothing; ``test_matrix.py`` says who is refused where."""

import json
import logging
from typing import Final

import pytest

from tests.access_callers import Caller, Site
from tests.access_decisions import RIGHTS
from tests.api_server import record

LONG: Final = "x" * 20_000
NEW: Final = record("writer-1")

NOWHERE: Final = [
    ("GET", "/healthcheck"),
    ("GET", "/api/v1/nothing"),
    ("POST", "/nothing"),
    ("POST", "/api/v1/nothing"),
    ("PUT", "/records"),
    ("HEAD", "/records"),
    ("OPTIONS", "/record"),
    ("DELETE", "/record/a-1"),
    ("GET", "/records/"),
    ("GET", "/record/a-1/b"),
]


@pytest.mark.parametrize("principal", RIGHTS, ids=str)
def test_health_needs_nothing(site: Site, principal: str | None) -> None:
    got = Caller(site, principal).ask("GET", "/health_check")
    assert (got.status, got.body) == (200, b"")


def there_and_forbidden(method: str, target: str) -> tuple[str, str]:
    """Something that exists and is refused to a monitor, beside which a path that does not exist looks alike."""
    match method, target.startswith("/api/"):
        case "POST", False:
            return "POST", "/record"
        case "POST", True:
            return "POST", "/api/v1/corrections"
        case _, True:
            return "GET", "/api/v1/records"
        case _:
            return "HEAD" if method == "HEAD" else "GET", "/records"


@pytest.mark.parametrize("principal", [None, "expired", "monitor"], ids=str)
def test_what_is_not_there_is_refused_like_what_is_forbidden(site: Site, principal: str | None) -> None:
    caller = Caller(site, principal)
    for method, target in NOWHERE:
        got, forbidden = caller.ask(method, target), caller.ask(*there_and_forbidden(method, target))
        assert (method, target, got.distinguishing) == (method, target, forbidden.distinguishing)


def test_even_an_administrator_does_not_see_what_is_not_there(site: Site) -> None:
    assert {Caller(site, "administrator").ask(*each).status for each in NOWHERE if each[1] != "/records/"} == {403}


@pytest.mark.parametrize("principal", [None, "reader"], ids=str)
@pytest.mark.parametrize("target", ["/record", "/records"])
def test_a_refused_post_never_looks_like_success_to_the_released_clients(
    site: Site, principal: str | None, target: str
) -> None:
    got = Caller(site, principal).ask("POST", target, [NEW] if target == "/records" else NEW)
    assert got.status in {401, 403}
    assert got.body
    assert not got.whole


@pytest.mark.parametrize("principal", [None, "monitor"], ids=str)
def test_only_a_refused_post_of_auditors_protocol_is_cut_short(site: Site, principal: str | None) -> None:
    for method, target in NOWHERE:
        if method == "HEAD":  # its answer names the length of a body that does not follow
            continue
        got = Caller(site, principal).ask(method, target)
        cut = method == "POST" and not target.startswith("/api/")
        assert (method, target, got.whole) == (method, target, not cut)


def test_nobody_is_told_how_to_log_in(site: Site) -> None:
    assert Caller(site, None).ask("GET", "/records").headers["WWW-Authenticate"] == 'Bearer realm="auditord"'
    problem = Caller(site, None).ask("GET", "/api/v1/records")
    assert problem.headers["Content-Type"] == "application/problem+json"
    assert problem.headers["WWW-Authenticate"] == 'Bearer realm="auditord"'
    assert problem.json == {
        "status": 401,
        "title": "Unauthorized",
        "detail": "The caller is not authenticated: send a bearer token or a client certificate.",
        "remedy": "send Authorization: Bearer <token>, or use a client certificate",
    }


def test_who_lacks_a_role_is_told_so(site: Site) -> None:
    assert Caller(site, "monitor").ask("GET", "/api/v1/records").json == {
        "status": 403,
        "title": "Forbidden",
        "detail": "Insufficient permissions",
        "remedy": "ask the operator of this server for a role; or the path does not exist",
    }


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        "Bearer x",
        "Bearer auditord_x",
        "Bearer auditord_x_y",
        "Bearer " + "x" * 20_000,
    ],
)
def test_what_is_no_token_is_refused(site: Site, authorization: str) -> None:
    assert Caller(site, None).ask("GET", "/records", headers={"Authorization": authorization}).status == 401


def test_a_token_with_one_character_changed_is_refused(site: Site) -> None:
    token = site.tokens["reader"]
    for position in (9, 20, 25, len(token) - 2):
        wrong = token[:position] + ("A" if token[position] != "A" else "B") + token[position + 1 :]
        assert Caller(site, None).ask("GET", "/records", headers={"Authorization": f"Bearer {wrong}"}).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-Proto": "http"},
        {"Forwarded": "proto=http;for=127.0.0.1;host=localhost"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Real-IP": "127.0.0.1"},
        {"X-Original-URL": "/health_check"},
        {"X-HTTP-Method-Override": "GET"},
        {"Host": "localhost"},
    ],
    ids=lambda each: next(iter(each)),
)
def test_no_header_opens_anything(site: Site, headers: dict[str, str]) -> None:
    for principal in (None, "monitor"):
        got = Caller(site, principal).ask("GET", "/records", headers=headers)
        assert got.status in {401, 403}


@pytest.mark.parametrize(
    "query", ["%", "meta[", "meta[a][c][0]=x&meta", "sort_by=%ff", "=&=&&", "limit=-1", "x" * 5_000]
)
def test_a_malformed_query_is_refused_before_it_is_read(site: Site, query: str) -> None:
    assert Caller(site, None).ask("GET", f"/records?{query}").status == 401
    assert Caller(site, "monitor").ask("GET", f"/records?{query}").status == 403
    assert Caller(site, "reader_a").ask("GET", f"/records?{query}").status in {200, 400}


def test_the_audit_log_says_who_acted_and_who_was_refused(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "auditord.audit")
    Caller(site, "monitor").ask("GET", "/records?token=hunter2")
    Caller(site, "expired").ask("POST", "/record", NEW)
    Caller(site, "operator").ask("POST", "/api/v1/quarantine/discard", {"ids": []})
    Caller(site, "reader").ask("GET", "/records")
    lines = [json.loads(line.getMessage()) for line in caplog.records if line.name == "auditord.audit"]
    known = [(each["event"], each.get("principal"), each["method"], each["path"]) for each in lines]
    assert known == [
        ("refused", "tokens:monitor", "GET", "/records"),
        ("refused", None, "POST", "/record"),
        ("acting", "tokens:operator", "POST", "/api/v1/quarantine/discard"),
    ]
    assert {each["from"] for each in lines} == {"127.0.0.1"}
    assert "expired" in lines[1]["reason"]
    assert "hunter2" not in caplog.text
    assert not [token for token in site.tokens.values() if token in caplog.text]


def test_the_audit_log_says_that_records_of_others_were_refused(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "auditord.audit")
    mine, first, second = (
        record(name, meta={"site_id": [at]}) for name, at in (("a-9", "A"), ("b-8", "B"), ("b-9", "B"))
    )
    Caller(site, "site_a").ask("POST", "/api/v1/records", [mine, first, second])
    (line,) = [json.loads(line.getMessage()) for line in caplog.records if line.name == "auditord.audit"]
    assert (line["event"], line["principal"], line["path"]) == ("refused", "tokens:site_a", "/api/v1/records")
    assert "'b-8'" in line["reason"]
    assert "1 more" in line["reason"]
