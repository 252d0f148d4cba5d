"""The page of a whole daemon: what it shows, to whom, and that its figures are those of the API."""

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import unescape
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from zoneinfo import ZoneInfo

import pytest

from auditord import __version__
from auditord.client import Client
from auditord.manual import topics
from auditord.reporting.measures import NOTHING
from auditord.testing.daemon import running_daemon
from auditord.web.page.query_string import GROUPS
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_hookspecs import Component, Record, Score

HTML = {"Accept": "text/html,application/xhtml+xml"}
NOW = datetime.now(UTC)
HEADING = r'<th scope="col"[^>]*>(?:<a [^>]+>)?([^<]+)<'
HOSTILE = '<script>alert("x")</script>'


def job(number: int, *, site: str, group: str, user: str, cores: int = 4) -> Record:
    stop = NOW - timedelta(hours=number % 40)
    parts = (Component("Cores", cores, (Score("HEPscore23", 10.0),)), Component("TotalCPU", 3_600 * cores, ()))
    meta: dict[str, tuple[str, ...]] = {"site_id": (site,), "group_id": (group,), "user_id": (user,)}
    return Record(f"job/{number}", stop - timedelta(hours=2), parts, stop, meta)


RECORDS = [
    *(job(number, site="KIT", group="belle", user="alice") for number in range(60)),
    *(job(number, site="DESY", group="atlas", user="bob", cores=8) for number in range(100, 130)),
    job(500, site="KIT", group=HOSTILE, user="=mallory"),
]

_END = NOW.replace(day=1) - timedelta(days=1)
OF_LAST_MONTH = Record(
    "job/last-month",
    _END - timedelta(hours=2),
    (Component("Cores", 4, ()), Component("TotalCPU", 3_600, ())),
    _END,
    {"site_id": ("KIT",), "group_id": ("cms",), "user_id": ("carol",)},
)


@dataclass(frozen=True)
class Response:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass(frozen=True)
class Visitor:
    """Asks a daemon, perhaps with a token."""

    url: str
    token: str | None = None

    def get(self, path: str, headers: Mapping[str, str] = HTML) -> Response:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        sent = dict(headers) | ({} if self.token is None else {"Authorization": f"Bearer {self.token}"})
        connection.request("GET", path, headers=sent)
        answer = connection.getresponse()
        found = Response(answer.status, dict(answer.getheaders()), answer.read())
        connection.close()
        return found

    def json(self, path: str) -> Any:  # Any: JSON
        got = self.get(path, {})
        assert got.status == 200, got.text
        return json.loads(got.body)


ROLES = {
    "own_group": {"permissions": ["read"], "rows": {"group_id": ["belle"]}},
    "seer": {"permissions": ["read"]},
    "alice": {"permissions": ["read"], "rows": {"user_id": ["self"]}},
    "group_at_site": {"permissions": ["read"], "rows": {"site_id": ["KIT", "DESY"], "group_id": ["belle"]}},
    "manager": {"permissions": ["read", "metrics", "operate"]},
}


@pytest.fixture(scope="module")
def open_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    pledges = [{"amount": 100, "from": f"{NOW.year - 1}-01-01", "to": f"{NOW.year + 1}-01-01"}]
    sections = {
        "ui": {"title": "Site & Sons", "labels": ["partition"], "links": [{"title": "Help", "url": "/help"}]},
        "pledges": pledges,
    }
    with running_daemon(tmp_path_factory.mktemp("open"), sections) as daemon:
        Client(daemon.url).add_all(RECORDS)
        yield Visitor(daemon.url)


@pytest.fixture(scope="module")
def guarded_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Visitor]]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "state").mkdir(mode=0o700)
    tokens = {name: new_token(name, [name], NOW, None) for name in (*ROLES, "administrator")}
    TokenFile(folder / "state").change(lambda _: [stored for stored, _ in tokens.values()])
    days = {"from": f"{NOW.year - 1}-01-01", "to": f"{NOW.year + 1}-01-01"}
    pledges = [{"amount": 100, **days}, *({"amount": 10, "group": name, **days} for name in ("belle", "atlas"))]
    sections = {
        "authenticators": {"tokens": {"kind": "tokens"}},
        "access": {"roles": ROLES},
        "pledges": [
            *pledges,
            {"amount": 20, "site": "KIT", **days},
            {"amount": 5, "site": "KIT", "group": "belle", **days},
        ],
    }
    with running_daemon(folder, sections) as daemon:
        Client(daemon.url, token=tokens["administrator"][1]).add_all([*RECORDS, OF_LAST_MONTH])
        yield {
            "nobody": Visitor(daemon.url),
            **{name: Visitor(daemon.url, token) for name, (_, token) in tokens.items()},
        }


PAGES = [
    "/",
    "/usage",
    "/usage?measure=cpu-efficiency&by=user",
    "/usage?by=size&bin=none",
    "/jobs",
    "/operations",
    "/panels",
    "/manual",
]


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_shown_with_a_policy_that_lets_nothing_in(open_site: Visitor, path: str) -> None:
    got = open_site.get(path)
    assert (got.status, got.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = got.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "Site &amp; Sons" in got.text
    assert HOSTILE not in got.text
    assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son[a-z]+=|https?://(?!www.w3.org|127.0.0.1)", got.text)


@pytest.mark.parametrize("path", ["/usage", "/usage.svg"])
def test_weeks_that_are_not_whole_are_hatched_and_named(open_site: Visitor, path: str) -> None:
    monday = (NOW - timedelta(days=14 + NOW.weekday())).date()
    span = f"from={monday + timedelta(days=2)}&to={NOW.date()}"
    shown = open_site.get(f"{path}?bin=week&{span}").text
    first = monday + timedelta(days=2)
    assert f"{monday:%G-W%V}, from {first.day} {first:%b}" in shown
    assert shown.count('fill="url(#hatch)"') == (2 if NOW.weekday() < 6 else 1)
    assert 'fill="url(#hatch)"' not in open_site.get(f"{path}?bin=day&{span}").text


def test_a_bar_leads_to_the_jobs_that_it_counts(tmp_path: Path) -> None:
    days = range(45)
    with running_daemon(tmp_path, {}) as daemon:
        stops = [NOW - timedelta(days=day) for day in days]
        Client(daemon.url).add_all(
            [Record(f"job/{day}", stops[day] - timedelta(hours=1), (), stops[day]) for day in days]
        )
        visitor = Visitor(daemon.url)
        page = visitor.get("/usage?period=30-days&bin=week&by=none&measure=jobs").text
        bars = re.findall(r'<a href="(/jobs[^"]+)" tabindex="-1"><title>[^<]+: (\d+)</title>', page)
        listed = [len(re.findall(r'href="/jobs/job', visitor.get(unescape(url)).text)) for url, _ in bars]
        assert listed == [int(count) for _, count in bars]
        assert sum(listed) == 30


def test_programs_at_the_root_get_a_line_of_text(open_site: Visitor) -> None:
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        got = open_site.get("/", headers)
        assert got.status == 200
        assert got.text == f"auditord {__version__}: the manual is at /manual, the API at /openapi.json\n"


def test_without_the_page_there_is_no_route_of_it(tmp_path: Path) -> None:
    with running_daemon(tmp_path, {"ui": {"enabled": False}}) as daemon:
        visitor = Visitor(daemon.url)
        assert {
            visitor.get(path).status
            for path in (*PAGES, "/manual/page", "/usage.csv", "/jobs/x", "/page/page.css")
            if path != "/"
        } == {404}
        assert "/manual" not in visitor.get("/").text


def test_every_topic_of_the_manual_is_there_and_links_to_others(open_site: Visitor) -> None:
    contents = unescape(open_site.get("/manual").text)
    for name, topic in topics().items():
        assert f'<a href="/manual/{name}">{topic.title}</a>' in contents
    got = open_site.get("/manual/page")
    assert got.status == 200
    assert '<a href="/manual/access#logging-in-to-the-page">' in got.text
    assert 'aria-current="page">The page</a>' in got.text
    assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son[a-z]+=", got.text)
    assert "auditord_http_requests" in open_site.get("/manual/metrics").text  # a reference, written when asked
    missing = open_site.get("/manual/%3Cb%3Enothing")
    assert (missing.status, "&lt;b&gt;nothing" in missing.text) == (404, True)


def test_static_files_are_kept_for_ever_under_the_hash_of_their_content(open_site: Visitor) -> None:
    page = open_site.get("/").text
    paths = set(re.findall(r'(?:href|src)="(/page/[^"]+)"', page))
    assert len(paths) >= 5
    for path in paths:
        got = open_site.get(path, {})
        packed = open_site.get(path, {"Accept-Encoding": "gzip"})
        assert (got.status, "immutable" in got.headers["Cache-Control"]) == (200, True)
        assert gzip.decompress(packed.body) == got.body
    assert open_site.get("/page/page.css").status == 404


def sums(visitor: Visitor, more: str = "") -> dict[str, float]:
    """Core hours of groups, as the API has them."""
    answer = visitor.json(f"/api/v1/aggregates?by=meta:group_id&usage=Cores{more}")
    return {each["key"]["meta:group_id"]: each["usage"]["Cores"]["amount_runtime"] / 3_600 for each in answer["groups"]}


def test_each_figure_is_the_sum_of_the_api(open_site: Visitor) -> None:
    expected = sums(open_site)
    page = open_site.get("/usage?period=90-days&bin=none").text
    rows = dict(re.findall(r'class="fixed"><a [^>]+>([^<]+)</a></th><td class="number strong">([^<]+)<', page))
    assert {name: float(value) for name, value in rows.items()} == {
        "belle": expected["belle"],
        "atlas": expected["atlas"],
        "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;": expected[HOSTILE],
    }
    document = open_site.json("/usage.json?period=90-days")
    assert {row["label"]: row["total"]["core-hours"] for row in document["rows"]} == expected
    assert document["total"]["core-hours"] == sum(expected.values())
    assert sum(each["core-hours"] for each in document["bins"].values()) == sum(expected.values())


def test_each_figure_of_the_overview_is_the_sum_of_the_api(open_site: Visitor) -> None:
    month = f"&stop_time[gte]={NOW:%Y-%m}-01T00:00:00Z"
    expected = sums(open_site, month)
    page = unescape(open_site.get("/").text)
    (total,) = re.findall(r'<h2>Core hours</h2>\s*<p class="figure">([\d.,]+) ', page)
    assert float(total.replace(",", "")) == sum(expected.values())
    (jobs,) = re.findall(r'<h2>Jobs</h2>\s*<p class="figure">([\d,]+)<', page)
    groups = open_site.json(f"/api/v1/aggregates?by=meta:group_id{month}")["groups"]
    assert int(jobs) == sum(each["records"] for each in groups)
    rows = re.findall(
        r'<a href="/usage\?period=this-month&group=[^"]*">(.+?)</a></th><td class="number">([\d.,]+)<', page
    )
    assert {name: float(value) for name, value in rows} == expected


def test_a_view_is_compared_with_the_period_and_the_year_before(tmp_path: Path) -> None:
    def stopped(days: int) -> Record:
        stop = NOW - timedelta(days=days)
        return Record(f"job/{days}", stop - timedelta(hours=1), (), stop, {"group_id": ("g",)})

    first, last, next_week = (f"{NOW - timedelta(days=each):%Y-%m-%d}" for each in (40, 20, -7))
    with running_daemon(tmp_path, {}) as daemon:
        visitor = Visitor(daemon.url)
        Client(daemon.url).add_all(map(stopped, (30, 31, 55, 55 + 365)))
        page = visitor.get(f"/usage?from={first}&to={last}&measure=jobs").text
        assert "Previous period: 1 · <strong>+100 %</strong>" in page
        assert "year before" not in page  # no record is known of it
        Client(daemon.url).add(stopped(30 + 365))
        page = visitor.get(f"/usage?from={first}&to={last}&measure=jobs").text
        assert "A year before: 1 · <strong>+100 %</strong>" in page
        page = visitor.get(f"/usage?from={first}&to={next_week}&measure=jobs").text  # 41 of 48 days
        assert "Same days of the previous period: 1 ·" in page
        assert "Same days a year before: 1 ·" in page


def test_co2_is_shown_if_its_intensity_is_configured(tmp_path: Path) -> None:
    with running_daemon(tmp_path, {"ui": {"co2_per_kwh": 0.25}}) as daemon:
        Client(daemon.url).add(Record("job", NOW - timedelta(hours=1), (Component("Energy", 36_000_000, ()),), NOW))
        visitor = Visitor(daemon.url)
        for query in ("measure=co2&by=none", "measure=co2", "measure=co2&chart=days"):
            page = visitor.get(f"/usage?{query}")
            assert (page.status, '<p class="figure">2.5' in page.text) == (200, True), query
            assert visitor.json(f"/usage.json?{query}")["total"] == {"co2": 2.5}


def test_a_heat_map_has_the_days_of_all_and_the_table_the_rows(open_site: Visitor) -> None:
    page = open_site.get("/usage?chart=days&measure=jobs&period=90-days").text
    days = re.findall(r"<title>\w{3} \d+ \w{3} \d{4}: (\d+)</title>", page)
    assert len(days) == 90
    assert sum(map(int, days)) == len(RECORDS)
    assert [each in page for each in ("belle", "atlas", f'<p class="figure">{len(RECORDS)}')] == [True] * 3


@pytest.mark.parametrize("by", ["group", "user"])
def test_a_long_axis_shows_what_the_whole_report_has(
    open_site: Visitor, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The picture of the file is made of every row's bins, the page asks for those of the largest row alone."""
    monkeypatch.setattr("auditord.web.page.figures.MOST_COLOURS", 1)
    view = f"bin=day&period=90-days&measure=jobs&by={by}"
    picture = open_site.get(f"/usage.svg?{view}").text
    page = open_site.get(f"/usage?{view}").text
    marks = [set(re.findall(r"<title>[^<]+: \d+</title>", text)) for text in (picture, page)]
    assert marks[0] == marks[1]
    assert any("more" in mark for mark in marks[0])
    assert "too many days or weeks" in page


def test_weeks_of_users_who_are_not_shown_one_by_one_are_one_row(
    open_site: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = "bin=week&period=90-days&measure=jobs&by=user"
    monkeypatch.setattr("auditord.web.page.figures.MOST_COLOURS", 1)
    monkeypatch.setattr("auditord.web.page.usage._ROWS", 1)
    whole = open_site.get(f"/usage?{view}").text
    monkeypatch.setattr("auditord.web.page.usage._MANY_COLUMNS", 3)
    page = open_site.get(f"/usage?{view}").text
    tables = [re.findall(r"<t(?:body|foot)>.*?</t(?:body|foot)>", text, re.DOTALL) for text in (whole, page)]
    assert tables[0] == tables[1] != []
    assert "more" in tables[1][0]


def test_the_curl_line_of_a_view_gives_its_figures(open_site: Visitor) -> None:
    page = open_site.get("/usage?period=90-days&bin=none&group=belle").text
    line = re.search(r"<code>curl -g &#39;([^<]+)&#39;</code>", page)
    assert line is not None
    answer = open_site.json(line[1].replace("&amp;", "&").removeprefix(open_site.url))
    (group,) = answer["groups"]
    assert group["usage"]["Cores"]["amount_runtime"] / 3_600 == sums(open_site)["belle"]


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/St_Johns"])
def test_the_days_of_a_view_are_those_of_its_time_zone(open_site: Visitor, zone: str) -> None:
    view = f"period=7-days&bin=day&by=none&measure=jobs&timezone={zone}"
    shown = {day: each["jobs"] for day, each in open_site.json(f"/usage.json?{view}")["bins"].items()}
    line = re.search(r"<code>curl -g &#39;([^<]+)&#39;</code>", open_site.get(f"/usage?{view}").text)
    assert line is not None
    groups = open_site.json(line[1].replace("&amp;", "&").removeprefix(open_site.url))["groups"]
    assert shown == {next(iter(group["key"].values())): group["records"] for group in groups}
    days = [record.stop_time.astimezone(ZoneInfo(zone)).date() for record in RECORDS if record.stop_time]
    assert shown == {day.isoformat(): days.count(day) for day in days}


def test_the_times_of_a_view_are_in_its_time_zone(open_site: Visitor) -> None:
    zone = "Pacific/Kiritimati"
    usage, jobs = (open_site.get(f"/{page}?timezone={zone}").text for page in ("usage", "jobs"))
    assert f"All times are in {zone}." in usage
    assert f"All times are in {zone}." in jobs
    latest = max(record.start_time for record in RECORDS)
    assert f'<td class="time">{latest.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}</td>' in jobs


def test_configured_labels_are_offered_to_group_by(open_site: Visitor) -> None:
    offered = re.search(r'<select name="by">(.*?)</select>', open_site.get("/usage?by=VO").text, re.DOTALL)
    assert offered is not None
    assert re.findall(r'value="(\w+)"', offered[1]) == [*GROUPS, "partition", "VO"]


def test_the_share_of_the_pledge_is_shown(open_site: Visitor) -> None:
    page = open_site.get("/usage?period=30-days").text
    share = 100 * sum(sums(open_site).values()) / (100 * 24 * 30)
    assert f"{share:.1f} % of the pledge of 72,000" in page
    assert 'class="pledge"' in page


def test_a_month_is_not_compared_with_the_pledge_of_some_of_its_days(open_site: Visitor) -> None:
    page = open_site.get(f"/usage?from={NOW.year - 2}-12-01&to={NOW.year - 1}-01-31&bin=month").text
    assert "of the pledge of" not in page
    assert f"only part of the period: all sites, 1 Jan {NOW.year - 1} to 31 Jan {NOW.year - 1}" in page


ASKED = ("", "group=belle", "group=atlas", "site=KIT", "site=KIT&group=belle", "group=belle&user=alice")


@pytest.mark.parametrize("path", ["/usage", "/usage.svg"])
@pytest.mark.parametrize(
    ("caller", "shown"),
    [
        ("seer", ["", "group=belle", "group=atlas", "site=KIT", "site=KIT&group=belle"]),
        ("own_group", ["", "group=belle", "site=KIT", "site=KIT&group=belle"]),
        ("group_at_site", ["site=KIT&group=belle"]),
        ("alice", []),
    ],
)
def test_a_pledge_is_shown_to_those_who_see_all_records_that_it_is_compared_with(
    guarded_site: Mapping[str, Visitor], path: str, caller: str, shown: Sequence[str]
) -> None:
    answers = {asked: guarded_site[caller].get(f"{path}?period=30-days&{asked}") for asked in ASKED}
    assert {got.status for got in answers.values()} == {200}
    assert [asked for asked, got in answers.items() if "of the pledge of" in got.text] == shown
    assert [asked for asked, got in answers.items() if 'class="pledge"' in got.text] == shown


def test_the_leader_of_one_group_sees_its_pledge_without_a_filter(guarded_site: Mapping[str, Visitor]) -> None:
    def compared(caller: str, asked: str) -> list[str]:
        text = guarded_site[caller].get(f"/usage?period=30-days&bin=none&{asked}").text
        return re.findall(r"[\d.<]+ % of the pledge of [\d,]+", text)

    for own, filtered in (("", "group=belle"), ("site=KIT", "site=KIT&group=belle")):
        assert compared("own_group", own) == compared("seer", filtered) != []
    assert compared("own_group", "") != compared("seer", "")
    rows = guarded_site["own_group"].get("/usage?period=30-days&bin=none&by=group").text
    assert ("Of pledge %" in rows, "atlas" in rows) == (True, False)


@pytest.mark.parametrize(
    ("form", "begin"), [("csv", b"day,group,"), ("parquet", b"PAR1"), ("xlsx", b"PK"), ("svg", b"<svg"), ("json", b"{")]
)
def test_views_are_files_as_well(open_site: Visitor, form: str, begin: bytes) -> None:
    got = open_site.get(f"/usage.{form}")
    assert (got.status, got.body[: len(begin)]) == (200, begin)
    assert got.headers["Content-Disposition"] == f'attachment; filename="usage.{form}"'


def test_the_share_of_an_unknown_figure_is_unknown_and_not_zero(guarded_site: Mapping[str, Visitor]) -> None:
    text = guarded_site["administrator"].get("/usage?by=group&period=12-months&bin=none&measure=score-hours").text
    [cells] = re.findall(r'<tr><th scope="row"[^>]*><a [^>]*>cms</a>.*?</tr>', text, re.DOTALL)
    assert re.findall(r'<td class="number[^"]*">([^<]*)</td>', cells) == [NOTHING, NOTHING]


def test_a_picture_says_what_it_is_of(open_site: Visitor) -> None:
    picture = open_site.get("/usage.svg?period=30-days&by=user&site=KIT&measure=score-hours").text
    texts = [unescape(each) for each in re.findall(r"<text[^>]*>([^<]+)</text>", picture)]
    assert texts[0] == "Score-weighted hours (HEPscore23) by user per day"
    assert re.fullmatch(r"Site & Sons · \d+ \w{3} \d{4} to \d+ \w{3} \d{4} · UTC", texts[1])
    assert re.fullmatch(r"[\d,]+ score h · Site is KIT", texts[2])
    assert {"alice", "=mallory", "score h"} <= set(texts)
    empty = open_site.get("/usage.svg?from=2001-01-01&to=2001-01-02").text
    assert "No record stopped in this period." in empty
    assert "of the pledge of" in open_site.get("/usage.svg").text


def test_jobs_come_in_pages_that_hold_each_record_once(open_site: Visitor) -> None:
    path, found = "/jobs", list[str]()
    while True:
        page = open_site.get(path).text
        found += re.findall(r'href="/jobs/([^"?]+)"', page)
        following = re.search(r'href="(/jobs\?[^"]*cursor=[^"]*)"', page)
        if following is None:
            break
        path = following[1].replace("&amp;", "&")
    assert sorted(found) == sorted(quote(record.record_id, safe="") for record in RECORDS)
    bobs = open_site.get("/jobs?user=bob").text
    assert ("job/100" in bobs, "<td>alice<" in bobs) == (True, False)


def test_jobs_have_the_columns_that_were_chosen(open_site: Visitor) -> None:
    page = open_site.get("/jobs?column=state&column=cores&column=site&column=").text
    heading = re.findall(HEADING, page)
    assert heading == ["Record", "Site", "Cores", "state"]
    assert 'name="column" value="state" checked' in page
    following = re.search(r'href="(/jobs\?[^"]*cursor=[^"]*)"', page)
    assert following is not None
    assert re.findall(HEADING, open_site.get(following[1].replace("&amp;", "&")).text) == heading


@pytest.mark.parametrize(
    "query",
    [
        "component[Cores][gte]=8",
        "component[Cores][lt]=8&meta[site_id][dnc][]=DESY",
        "meta[user_id][any][]=bob&meta[user_id][any][]=%3Dmallory",
        "meta[VO][absent]=true&runtime[gte]=7200&runtime[lt]=7201",
        "open=true",
        "record_id=job/7",
        "start_time[gte]=EARLIER",
    ],
)
def test_jobs_are_filtered_as_by_the_api(open_site: Visitor, query: str) -> None:
    query = query.replace("EARLIER", f"{NOW - timedelta(hours=9):%Y-%m-%dT%H:%M:%SZ}")
    expected = {each["record_id"] for each in open_site.json(f"/api/v1/records?{query}")["records"]}
    page = open_site.get(f"/jobs?limit=1000&{query}")
    assert page.status == 200
    assert {unquote(each) for each in re.findall(r'href="/jobs/([^"?]+)"', page.text)} == expected
    assert query == "open=true" or 0 < len(expected) < len(RECORDS) or "absent" in query


def test_what_the_form_of_jobs_sends_becomes_a_url(open_site: Visitor) -> None:
    sent = "site=&period=&runtime%5Bgte%5D=60&runtime%5Blt%5D=&filters=meta%5BVO%5D%5Babsent%5D%3Dtrue"
    sent += (
        "&label_key=group_id&label_is=dnc&label_value=atlas&component_name=Cores&component_is=lte&component_amount=4"
    )
    got = open_site.get(f"/jobs?{sent}")
    query = "runtime[gte]=60&meta[VO][absent]=true&meta[group_id][dnc][]=atlas&component[Cores][lte]=4"
    assert (got.status, got.headers["Location"]) == (303, f"/jobs?{query}")
    page = open_site.get(got.headers["Location"]).text
    assert ("job/1<" in page, "job/100<" in page) == (True, False)
    hidden = re.search(r'name="filters" value="([^"]*)"', page)
    assert hidden is not None
    assert hidden[1] == query.removeprefix("runtime[gte]=60&").replace("&", "&amp;")
    assert 'name="runtime[gte]" value="60"' in page
    assert "Cores ≤ 4" in unescape(page)


@pytest.mark.parametrize("column", ["Record", "Start", "Runtime"])
def test_jobs_are_sorted_by_a_column_either_way(open_site: Visitor, column: str) -> None:
    def ids(page: str) -> list[str]:
        return re.findall(r'href="/jobs/([^"?]+)"', page)

    page, seen = open_site.get("/jobs?limit=1000").text, list[list[str]]()
    for _ in range(2):
        link = re.search(rf'<a class="sorter" href="([^"]+)">{column}<', page)
        assert link is not None
        page = open_site.get(link[1].replace("&amp;", "&")).text
        assert "limit=1000" in link[1]
        seen.append(ids(page))
    assert seen[0] == seen[1][::-1]
    assert len(seen[0]) == len(RECORDS)


def test_a_record_has_a_page(open_site: Visitor) -> None:
    page = open_site.get("/jobs/job%2F100")
    assert (page.status, "HEPscore23 10" in page.text, "DESY" in page.text) == (200, True, True)
    assert open_site.get("/jobs/none").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/usage?x=1",
        "/jobs?column=%00",
        "/usage?measure=co2",
        "/usage?measure=gold",
        "/jobs?cursor=x",
        "/jobs?limit=1001",
        "/jobs?meta[VO][like]=x",
        "/jobs?component[Cores][gte]=many",
        "/jobs?start_time[gte]=yesterday",
        "/jobs?filters=&label_value=x",
        "/usage.csv?from=x",
        "/jobs/%ff",
    ],
)
def test_what_cannot_be_shown_says_why(open_site: Visitor, path: str) -> None:
    got = open_site.get(path)
    assert got.status in {400, 404}
    assert "This cannot be shown" in got.text


def test_rows_are_restricted_in_every_figure_list_and_file(guarded_site: Mapping[str, Visitor]) -> None:
    restricted, expected = guarded_site["own_group"], sums(guarded_site["administrator"])["belle"]
    document = restricted.json("/usage.json?period=90-days")
    assert [(row["label"], row["total"]["core-hours"]) for row in document["rows"]] == [("belle", expected)]
    paths = ("/", "/usage?period=90-days", "/usage?by=user", "/usage.csv", "/usage.svg", "/jobs", "/panels")
    for path in paths:
        got = restricted.get(path)
        assert (got.status, "atlas" in got.text, "bob" in got.text) == (200, False, False), path
    assert restricted.get("/jobs/job%2F100").status == 404
    assert restricted.get("/jobs/job%2F1").status == 200


def test_people_see_their_own_records_and_nothing_of_others(guarded_site: Mapping[str, Visitor]) -> None:
    alice, everything = guarded_site["alice"], guarded_site["administrator"]
    expected = everything.json("/api/v1/aggregates?by=meta:user_id&usage=Cores")["groups"]
    own = [group for group in expected if group["key"] == {"meta:user_id": "alice"}]
    assert alice.json("/api/v1/aggregates?by=meta:user_id&usage=Cores")["groups"] == own
    for path in ("/", "/usage?period=90-days", "/usage?by=user", "/usage.csv?by=user", "/usage.svg", "/jobs", "/my"):
        got = alice.get(path)
        assert (got.status, "bob" in got.text, "atlas" in got.text) == (200, False, False), path
    document = alice.json("/usage.json?period=90-days&by=user")
    assert [row["label"] for row in document["rows"]] == ["alice"]
    listed = alice.json("/api/v1/records?limit=1000")["records"]
    assert {record["record_id"] for record in listed} == {f"job/{number}" for number in range(60)}


def test_my_usage_is_that_of_the_visitor_whatever_else_they_may_see(guarded_site: Mapping[str, Visitor]) -> None:
    alice = guarded_site["alice"].get("/my?user=bob&period=90-days").text
    assert ("Usage of alice" in alice, 'href="/my" aria-current' in alice) == (True, True)
    assert re.search(r"Core hours</h2>\s*<p class=.figure.>480.0 ", alice)
    assert re.search(r"Idle core hours</h2>\s*<p class=.figure.>240.0 ", alice)
    manager = guarded_site["manager"].get("/my").text  # sees every record, of which none is of this name
    assert ("Usage of manager" in manager, "alice" in manager) == (True, False)


def test_without_a_user_name_my_usage_says_why(open_site: Visitor) -> None:
    got = open_site.get("/my")
    assert (got.status, "does not authenticate users" in got.text) == (200, True)
    assert "/my" not in open_site.get("/").text


def test_pages_are_for_those_who_may(guarded_site: Mapping[str, Visitor]) -> None:
    assert {guarded_site["nobody"].get(path).status for path in PAGES} == {303}  # to the login
    assert {guarded_site["nobody"].get(path, {}).status for path in PAGES} == {401}
    assert guarded_site["seer"].get("/operations").status == 403
    assert "/operations" not in guarded_site["seer"].get("/").text
    assert "Accounting is healthy" not in guarded_site["seer"].get("/").text
    manager = guarded_site["manager"].get("/")
    assert ("/operations" in manager.text, "Accounting is healthy" in manager.text) == (True, True)
    assert guarded_site["manager"].get("/operations").status == 200


def test_the_overview_compares_the_efficiency_with_last_months(guarded_site: Mapping[str, Visitor]) -> None:
    page = guarded_site["manager"].get("/").text
    figures = re.search(
        r"CPU efficiency</h2>\s*<p class=.figure.>([\d.]+) .*?Last month: ([\d.]+)&nbsp;", page, re.DOTALL
    )
    assert figures is not None
    view = "measure=cpu-efficiency&by=none&period="
    shown = [
        guarded_site["manager"].json(f"/usage.json?{view}{period}")["total"]["cpu-efficiency"]
        for period in ("this-month", "last-month")
    ]
    assert list(map(float, figures.groups())) == [round(each, 1) for each in shown]
    assert NOW.day < 3 or shown == [50, 12.5]


def test_former_versions_are_for_administrators(guarded_site: Mapping[str, Visitor]) -> None:
    assert guarded_site["administrator"].get("/", {}).status == 200
    page = guarded_site["administrator"].get("/jobs/job%2F1")
    assert (page.status, "Former versions" in page.text) == (200, False)


def test_a_proxy_may_show_the_page_below_a_path(tmp_path: Path) -> None:
    ui = {"root_path": "/accounting", "frame_ancestors": ["https://portal.example.org"]}
    with running_daemon(tmp_path, {"ui": ui}) as daemon:
        got = Visitor(daemon.url).get("/")
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', got.text)
        assert links
        assert [link for link in links if not link.startswith("/accounting/")] == []
        assert "frame-ancestors https://portal.example.org" in got.headers["Content-Security-Policy"]
