"""Principal by row: nobody sees a record that is not theirs, whatever they ask, and nobody writes one."""

from typing import Any, Final

import msgspec
import pytest

from tests.access_callers import Caller, Site
from tests.access_decisions import CONTROL, EVERY, OPEN, RIGHTS
from tests.api_server import record

SEEN: Final = {
    principal: RIGHTS[principal].sees
    for principal in (
        "reader",
        "operator",
        "administrator",
        "reader_a",
        "reader_a_or_h",
        "reader_none",
        "alice",
        "self",
    )
}

readers = pytest.mark.parametrize("principal", SEEN)


@readers
@pytest.mark.parametrize(
    "query",
    [
        "",
        "meta[site_id][dnc][0]=nothing",
        "meta[site_id][dnc][0]=A",
        "meta[site_id][dnc][0]=Z&meta[group_id][dnc][0]=Z",
        "meta[site_id][c][0]=B",
        "meta[site_id][c][0]=B&meta[site_id][c][1]=A",
        "meta[group_id][c][0]=g",
        "record_id=b-1",
        "start_time[gte]=2000-01-01T00:00:00Z",
        "sort_by[desc]=record_id",
        "sort_by[asc]=runtime",
        "component[Cores][gt]=0",
    ],
)
def test_a_listing_is_the_readers_part_of_the_whole(site: Site, principal: str, query: str) -> None:
    whole = Caller(site, "administrator").ask("GET", f"/records?{query}").wire_ids
    assert Caller(site, principal).ask("GET", f"/records?{query}").wire_ids == whole & SEEN[principal]


@readers
def test_a_record_is_there_for_those_who_see_it(site: Site, principal: str) -> None:
    caller = Caller(site, principal)
    for record_id in EVERY:
        seen = record_id in SEEN[principal]
        for target in ("/record/", "/api/v1/records/"):
            got, missing = caller.ask("GET", f"{target}{record_id}"), caller.ask("GET", f"{target}nobody")
            assert got.status == (200 if seen else 404)
            assert seen or got.body.replace(record_id.encode(), b"nobody") == missing.body


@pytest.fixture(scope="module")
def synced(site: Site) -> None:
    """The records are in the lake as well."""
    assert Caller(site, None, CONTROL).ask("POST", "/api/v1/instances/lake/runs", {}).status == 200


sources = pytest.mark.parametrize("source", ["store", "lake"])


@readers
@pytest.mark.parametrize(
    ("query", "among"),
    [
        ("", EVERY),
        ("open=true", OPEN),
        ("open=false", EVERY - OPEN),
        ("meta[site_id][any][]=B&meta[site_id][any][]=A", EVERY - {"none-1"}),
        ("meta[site_id][absent]=true", {"none-1"}),
        ("cursor=2000-01-01T00:00:00Z,a", EVERY),
    ],
)
@sources
@pytest.mark.usefixtures("synced")
def test_our_own_listing_and_export(site: Site, principal: str, query: str, among: set[str], source: str) -> None:
    caller, target = Caller(site, principal), f"/api/v1/records?source={source}&{query}"
    page = caller.ask("GET", target).json
    assert {each["record_id"] for each in page["records"]} == among & SEEN[principal]
    lines = caller.ask("GET", f"{target}&format=ndjson")
    assert lines.wire_ids == among & SEEN[principal]


@readers
@sources
@pytest.mark.usefixtures("synced")
def test_pages_end_where_the_readers_part_ends(site: Site, principal: str, source: str) -> None:
    found, target, caller = set[str](), f"/api/v1/records?limit=1&source={source}", Caller(site, principal)
    while target:
        page: Any = caller.ask("GET", target).json
        found |= {each["record_id"] for each in page["records"]}
        target = page["next"]
    assert found == SEEN[principal]


@readers
@sources
@pytest.mark.usefixtures("synced")
def test_sums_count_what_is_seen(site: Site, principal: str, source: str) -> None:
    caller, ended, target = Caller(site, principal), SEEN[principal] - OPEN, f"/api/v1/aggregates?source={source}"
    groups = caller.ask("GET", f"{target}&usage=Cores&open=false").json["groups"]
    assert sum(each["records"] for each in groups) == len(ended)
    assert sum(each["usage"]["Cores"]["amount"] for each in groups) == 8 * len(ended)
    by_id = caller.ask("GET", f"{target}&by=meta:site_id&by=meta:group_id").json["groups"]
    assert sum(each["records"] for each in by_id) == len(ended)
    others = caller.ask("GET", f"{target}&as_of=2030-01-01T00:00:00Z&meta[site_id][any][]=B").json["groups"]
    assert sum(each["records"] for each in others) == len({"b-1", "b-2", "ab-1", "b-open"} & SEEN[principal])


@readers
@sources
@pytest.mark.usefixtures("synced")
def test_the_page_counts_what_is_seen(site: Site, principal: str, source: str) -> None:
    query = f"source={source}&measure=jobs&by=none&bin=none&from=2000-01-01&to=2100-01-01"
    _, *lines = Caller(site, principal).ask("GET", f"/usage.csv?{query}").body.decode().splitlines()
    assert sum(int(line.rpartition(",")[2]) for line in lines) == len(SEEN[principal] - OPEN)


FORBIDDEN: Final = [
    record("b-9", meta={"site_id": ["B"]}),
    record("a-9", meta={"site_id": ["A", "B"]}),
    record("a-9", meta={"site_id": ["A"], "site": ["B"]}),
    record("a-9", meta={"group_id": ["A"]}),
    record("a-9", meta=None),
]
CLOSING_ANOTHERS: Final = record("b-open", meta={"site_id": ["A"]})


@pytest.mark.parametrize("principal", ["site_a", "prefix_a"])
@pytest.mark.parametrize("given", FORBIDDEN, ids=lambda each: str(each["meta"]))
def test_a_collector_writes_only_its_own_site(site: Site, principal: str, given: dict[str, Any]) -> None:
    caller, own = Caller(site, principal), record("a-8", meta={"site_id": ["A"]})
    for target, body in (("/record", given), ("/records", [own, given])):
        got = caller.ask("POST", target, body)
        assert (got.status, got.whole) == (403, False)
    assert Caller(site, "administrator").ask("GET", "/record/a-8").status == 404
    (verdict,) = caller.ask("POST", "/api/v1/records", [given]).json["verdicts"]
    assert verdict["verdict"] == "forbidden"
    assert Caller(site, "administrator").ask("GET", f"/record/{given['record_id']}").status == 404


def test_a_refused_body_that_is_retried_is_still_its_senders(site: Site) -> None:
    operator = Caller(site, None, CONTROL)

    def retried(record_id: str, site_id: str) -> Any:
        """Retry a body that was refused because it has a member twice."""
        text = msgspec.json.encode(record(record_id, meta={"site_id": [site_id]}))
        body = msgspec.Raw(text.replace(b"{", b'{"record_id":"%s",' % record_id.encode(), 1))
        assert Caller(site, "site_a").ask("POST", "/record", body).status == 400
        (entry,) = operator.ask("GET", "/api/v1/quarantine").json["entries"]
        return operator.ask("POST", "/api/v1/quarantine/retry", {"ids": [entry["number"]]}).json

    assert retried("a-7", "A")["queued"] == 1
    (reason,) = retried("b-7", "B")["failed"].values()
    assert reason == "record 'b-7' has a site or a prefix that its sender may not write"


def test_a_prefix_keeps_out_of_others_ids(site: Site) -> None:
    foreign = record("c-1", meta={"site_id": ["A"]})
    assert Caller(site, "prefix_a").ask("POST", "/record", foreign).status == 403
    assert Caller(site, "administrator").ask("GET", "/record/c-1").status == 404


@pytest.mark.parametrize("principal", ["site_a", "prefix_a", "shared_a"])
def test_no_other_sites_open_record_is_closed(site: Site, principal: str) -> None:
    assert Caller(site, principal).ask("POST", "/record", CLOSING_ANOTHERS).status == 403
    (verdict,) = Caller(site, principal).ask("POST", "/api/v1/records", [CLOSING_ANOTHERS]).json["verdicts"]
    assert verdict["verdict"] == "forbidden"
    assert Caller(site, "administrator").ask("GET", "/record/b-open").json["stop_time"] is None


@pytest.mark.parametrize(
    ("principal", "record_id", "status"),
    [
        ("site_a", "b-open", 404),
        ("site_a", "none-1", 404),
        ("site_a", "ab-1", 404),
        ("site_a", "nobody", 404),
        ("seen_a", "b-open", 404),
        ("seen_a", "none-1", 404),
        ("prefix_a", "b-open", 403),
        ("prefix_a", "nobody", 403),
        ("prefix_a", "a-nobody", 404),
        ("writer", "nobody", 404),
    ],
)
def test_no_other_sites_record_is_updated(site: Site, principal: str, record_id: str, status: int) -> None:
    before = Caller(site, "administrator").ask("GET", f"/record/{record_id}").body
    got = Caller(site, principal).ask("PUT", "/record", record(record_id, stop_time="2026-02-01T00:00:00Z"))
    assert got.status == status
    assert Caller(site, "administrator").ask("GET", f"/record/{record_id}").body == before


def test_of_many_records_only_those_of_others_are_refused(site: Site) -> None:
    mine = record("a-1", meta={"site_id": ["A"], "group_id": ["g"]})
    got = Caller(site, "site_a").ask("POST", "/api/v1/records", [FORBIDDEN[0], mine, {"record_id": "bad"}])
    assert got.status == 207
    assert [each["verdict"] for each in got.json["verdicts"]] == ["forbidden", "same", "invalid"]
