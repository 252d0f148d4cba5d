"""Filters are one thing: every link of every view carries all of them, and its figures are of the same records."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from time import monotonic
from typing import Final, TypeAlias
from urllib.parse import quote, unquote, urlencode, urlsplit

import msgspec
import pytest

from auditord.client import Client
from auditord.client.query_string import matches
from auditord.reporting import LabelKeys, Question
from auditord.reporting.measures import NOTHING
from auditord.testing.daemon import running_daemon
from auditord.web.page.query_string import ALL_TIME, JOBS, MY, USAGE, pieces_of, read_view
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_hookspecs import Component, Record
from tests.page_browser import Browser, Response

NOW: Final = datetime.now(UTC)
OUTCOMES: Final = ("completed", "failed", "timeout")
KEYS: Final = LabelKeys()


def job(number: int) -> Record:
    stop = NOW - timedelta(days=1.7 * number, hours=1)
    start = stop - timedelta(hours=1 + number % 5)
    meta = {
        "site_id": (("KIT", "DESY")[number % 2],),
        "group_id": (("belle", "atlas", "cms")[number % 3],),
        "user_id": (("alice", "bob", "carol & co")[number % 3],),
        "outcome": (OUTCOMES[number % 7 % 3],),
        **({} if number % 4 else {"VO": ("x y", "b[0]=1")}),
    }
    cores = 2 ** (number % 4)
    cpu = Component("TotalCPU", 3_600 * cores * (20 if number == 12 else 1), ())
    others = (Component("Memory", 2_048, ()), Component("WaitTime", 1_800, ()), Component("Disks", 2, ()))
    return Record(f"job/{number}", start, (Component("Cores", cores, ()), cpu, *others), stop, meta)


PATHS: Final = (USAGE, f"{USAGE}.csv", JOBS, f"{JOBS}.json", MY)

FINISHED: Final = [job(number) for number in range(60)]
RECORDS: Final = [*FINISHED, Record("open/1", NOW - timedelta(hours=3), (), None, {"user_id": ("alice",)})]
BEGIN: Final = NOW - timedelta(days=70)
END: Final = NOW - timedelta(days=9)

Predicate: TypeAlias = Callable[[Record], bool]


def has(key: str, *values: str) -> Predicate:
    return lambda record: bool({*values} & {*(record.meta or {}).get(key, ())})


def cores(record: Record) -> int:
    return next((each.amount for each in record.components if each.name == "Cores"), 0)


FILTERS: Final[Mapping[str, Predicate]] = {
    "outcome=failed": has("outcome", "failed"),
    "site=KIT": has("site_id", "KIT"),
    "group=belle": has("group_id", "belle"),
    "user=alice": has("user_id", "alice"),
    "meta[VO][c][]=x+y": has("VO", "x y"),
    "meta[VO][c][0]=b%5B0%5D%3D1": has("VO", "b[0]=1"),
    "meta[group_id][dnc][]=atlas": has("group_id", "belle", "cms"),
    "meta[outcome][any][]=failed&meta[outcome][any][]=timeout": has("outcome", "failed", "timeout"),
    "meta[VO][absent]=true": lambda record: "VO" not in (record.meta or {}),
    "component[Cores][gte]=4": lambda record: cores(record) >= 4,
    "component[Cores][gt]=1&component[Cores][lt]=8": lambda record: 1 < cores(record) < 8,
    "runtime[gte]=7200&runtime[lt]=14400": lambda record: 7_200 <= (record.runtime or 0) < 14_400,
    f"start_time[gte]={BEGIN:%Y-%m-%dT%H:%M:%SZ}": lambda record: record.start_time >= BEGIN.replace(microsecond=0),
    f"stop_time[lt]={END:%Y-%m-%dT%H:%M:%SZ}": lambda record: (
        record.stop_time is not None and record.stop_time < END.replace(microsecond=0)
    ),
    "record_id=job%2F9": lambda record: record.record_id == "job/9",
    "open=false": lambda record: record.stop_time is not None,
    "implausible=true": lambda record: record.record_id == "job/12",
}


filters = pytest.mark.parametrize("given", FILTERS, ids=[re.sub(r"=\d{4}-.*", "", each) for each in FILTERS])


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser of a caller who has a user name and sees all records."""
    folder = tmp_path_factory.mktemp("filters")
    (folder / "state").mkdir(mode=0o700)
    stored, token = new_token("alice", ["reader"], NOW, None)
    sender, sending = new_token("sender", ["writer"], NOW, None)
    TokenFile(folder / "state").change(lambda _: [stored, sender])
    with running_daemon(folder, {"authenticators": {"tokens": {"kind": "tokens"}}}) as daemon:
        Client(daemon.url, token=sending).add_all(RECORDS)
        browser, deadline = Browser(daemon.url, headers={"Authorization": f"Bearer {token}"}), monotonic() + 60
        while '<p class="note">1 of ' not in browser.get("/jobs?outcome=failed&limit=1").text:
            assert monotonic() < deadline, "the roll-ups by outcome are not filled"
        yield browser


@dataclass
class Page(HTMLParser):
    """The links of a page except those that remove a filter, and the fields that its form sends.

    Args:
        removing: the links that remove a filter.
    """

    text: str
    links: list[str] = field(default_factory=list[str])
    removing: list[str] = field(default_factory=list[str])
    action: str = ""
    fields: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _chips: bool = False
    _select: str = ""
    _options: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text.partition("<main")[2])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "p" and given.get("class") == "chips":
            self._chips = True
        elif tag == "a" and urlsplit(given.get("href", "")).path.partition(".")[0] in {USAGE, JOBS, MY}:
            (self.removing if self._chips else self.links).append(given["href"])
        elif tag == "form":
            self.action = given["action"]
        elif tag == "input" and (given.get("type") != "checkbox" or "checked" in given):
            self.fields.append((given["name"], given.get("value", "")))
        elif tag == "select":
            self._select, self._options = given["name"], []
        elif tag == "option":
            self._options.append((given.get("value", ""), "selected" in given))

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._chips = False
        elif tag == "select":
            chosen = [value for value, selected in self._options if selected]
            self.fields.append((self._select, [*chosen, *(value for value, _ in self._options)][0]))


def conditions_of(query: str) -> set[tuple[str, str]]:
    """The filters in a query string, decoded; indices of lists mean nothing, and the page is in UTC."""
    pieces = (unquote(piece.replace("+", " ")).partition("=") for piece in pieces_of(query))
    return {(re.sub(r"(\[(?:c|any|dnc)\])\[\d+\]", r"\1[]", key), value.removesuffix("Z")) for key, _, value in pieces}


def counted(url: str, passes: Predicate) -> set[str]:
    """The ids of the records behind a link: those that a filter passes, and that the rest of the link selects."""
    path, query = urlsplit(url).path.partition(".")[0], urlsplit(url).query
    view = read_view(query, path)
    is_dated = bool({"period", "from", "to"} & view.given.keys()) or path != JOBS
    window = view.window(NOW) if is_dated and view.period != ALL_TIME else None
    where = Question((view.measure,), window=window, filters=view.filters, keys=KEYS, among=view.where()).where()
    finished_only = path != JOBS
    return {
        each.record_id
        for each in RECORDS
        if passes(each) and matches(each, where) and not (finished_only and each.stop_time is None)
    }


def shown_by(alice: Browser, url: str) -> set[str] | int:
    """The ids that a list has, or the number of jobs that a view of usage counts."""
    parts = urlsplit(url)
    if parts.path.startswith(f"{JOBS}."):
        return {each["record_id"] for each in msgspec.json.decode(get(alice, f"/jobs.json?{parts.query}").text)}
    if parts.path == JOBS:
        kept = [each for each in pieces_of(parts.query) if not each.startswith("limit=")]
        page = get(alice, f"/jobs?{'&'.join([*kept, 'limit=1000'])}")
        return {unquote(each) for each in re.findall(r'href="/jobs/([^"?]+)"', page.text)}
    kept = [each for each in pieces_of(parts.query) if each.partition("=")[0] not in {"measure", "bin", "by", "chart"}]
    text = get(alice, f"/usage.json?{'&'.join([*kept, 'measure=jobs&bin=none&by=none'])}").text
    return int(msgspec.json.decode(text)["total"]["jobs"])


def get(alice: Browser, url: str) -> Response:
    got = alice.get(url)
    assert got.status == 200, (url, re.findall(r"<p[^>]*>([^<]+)</p>", got.text))
    return got


def some_of(links: Sequence[str]) -> Sequence[str]:
    """Links of every form: the first of those that differ only in a value."""
    found: dict[str, str] = {}
    for each in links:
        found.setdefault(re.sub(r"=[^&]*", "=", each), each)
    return list(found.values())


@pytest.mark.parametrize(
    "start",
    [
        "/usage?period=90-days&",
        "/usage?by=VO&then=outcome&period=all&",
        "/jobs?",
        "/jobs?period=90-days&limit=20&",
        "/my?period=90-days&",
        f"/usage?from={BEGIN:%Y-%m-%d}&to={END:%Y-%m-%d}&bin=none&",
        f"/jobs?from={BEGIN:%Y-%m-%d}&",
    ],
)
@filters
def test_every_link_keeps_every_filter_and_leads_to_the_same_records(alice: Browser, start: str, given: str) -> None:
    page = Page(get(alice, f"{start}{given}").text)
    links = [each for each in page.links if not each.startswith("/jobs/")]
    assert links
    wanted, faults = conditions_of(given), list[object]()
    for link in links:
        parts = urlsplit(link)
        if missing := wanted - conditions_of(parts.query):
            faults.append((link, missing))
    for link in some_of([each for each in links if "cursor=" not in each]):
        expected = counted(link, FILTERS[given])
        found = shown_by(alice, link)
        if found != (expected if isinstance(found, set) else len(expected)):
            faults.append((link, found, len(expected)))
    assert faults == []


@pytest.mark.parametrize("start", ["/usage?measure=jobs&period=90-days&", "/jobs?limit=1000&", "/my?period=90-days&"])
@filters
def test_a_form_that_is_sent_unchanged_shows_the_same(alice: Browser, start: str, given: str) -> None:
    page = Page(get(alice, f"{start}{given}").text)
    sent = alice.get(f"{page.action}?{urlencode(page.fields)}")
    assert sent.status == 303
    own = "&user=alice" if start.startswith(MY) else ""  # that page has one user, and no field for it
    shown = f"{sent.location}{own}"
    assert conditions_of(given) <= conditions_of(urlsplit(shown).query)
    if "T" not in given:  # the form's times have no zone
        asked = f"{start}{given}{own if given != 'user=alice' else ''}"
        assert counted(shown, lambda _: True) == counted(asked, FILTERS[given])


@filters
def test_the_lines_for_a_terminal_count_the_same_records(alice: Browser, given: str) -> None:
    text = unescape(get(alice, f"/usage?bin=none&by=none&period=90-days&{given}").text)
    line = re.search(r"<code>curl -g '([^<]+)'</code>", text)
    assert line is not None
    groups = msgspec.json.decode(alice.get(line[1].removeprefix(alice.url)).text)["groups"]
    expected = counted(f"/usage?period=90-days&{given}", FILTERS[given])
    assert sum(each["records"] for each in groups) == len(expected)


def test_each_filter_is_named_above_the_figures_and_can_be_removed(alice: Browser) -> None:
    view = "outcome=failed&meta[VO][c][]=x+y&component[Cores][gte]=2"
    for start in ("/usage?period=90-days&", "/jobs?"):
        page = Page(get(alice, start + view).text)
        *single, everything = page.removing
        left = [conditions_of(urlsplit(each).query) & conditions_of(view) for each in single]
        assert left == [
            conditions_of(view) - {each} for each in sorted(conditions_of(view), key=lambda each: view.index(each[0]))
        ]
        assert conditions_of(urlsplit(everything).query) & conditions_of(view) == set()
        for text in ("Outcome is failed", "VO is x y", "Cores ≥ 2"):
            assert text in unescape(page.text)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/usage?open=true", "usage is of finished jobs: remove the filter"),
        ("/usage.csv?open=true", "usage is of finished jobs: remove the filter"),
        ("/my?open=true", "usage is of finished jobs: remove the filter"),
        ("/jobs?source=lake", "this page takes no 'source'"),
        ("/my?measure=jobs", "this page takes no 'measure'"),
        *(
            (f"{path}?period=last-month&{day}=2026-10-05", "give 'period', or")
            for path in PATHS
            for day in ("from", "to")
        ),
        ("/?group=belle", "the overview has neither filters nor another period"),
        ("/usage?meta[VO][like]=x", "unknown operator 'like'"),
    ],
)
def test_what_a_page_cannot_take_is_refused(alice: Browser, path: str, reason: str) -> None:
    got = alice.get(path)
    assert (got.status, reason in unescape(got.text)) == (400, True)


@pytest.mark.parametrize("start", [USAGE, JOBS, MY])
def test_dates_in_a_form_count_instead_of_its_period(alice: Browser, start: str) -> None:
    fields = [*Page(get(alice, f"{start}?period=last-month").text).fields, ("from", "2026-10-05")]
    assert ("period", "last-month") in fields
    sent = alice.get(f"{start}?{urlencode([each for each in fields if each != ('from', '')])}")
    shown = dict(read_view(urlsplit(sent.location or "").query, start).given)
    assert (shown.get("from"), shown.get("period")) == ("2026-10-05", None)
    assert get(alice, sent.location or "").status == 200


def test_a_list_of_open_jobs_says_that_they_have_no_usage_yet(alice: Browser) -> None:
    page = get(alice, "/jobs?open=true").text
    assert ("open/1" in page, "Open jobs count in usage once they have finished" in page) == (True, True)
    assert [each for each in Page(page).links if each.startswith(USAGE)] == []


@filters
def test_a_list_has_its_length_unless_that_needs_every_record(alice: Browser, given: str) -> None:
    expected = sum(map(FILTERS[given], RECORDS))
    assert f'<p class="note">{expected} job{"s" * (expected != 1)}</p>' in get(alice, f"/jobs?{given}&limit=100").text
    told = re.findall(r'<p class="note">2 of (\d+) jobs</p>', get(alice, f"/jobs?{given}&limit=2").text)
    in_rollups = given.startswith(
        ("site=", "group=", "user=", "outcome=", "meta[group_id]", "meta[outcome]", "stop_time", "open=")
    )
    assert told == ([str(expected)] if in_rollups else [])


def test_a_list_of_failed_jobs_has_its_length(alice: Browser) -> None:
    for view in ("outcome=failed", "outcome=failed&user=alice", "outcome=failed&period=90-days&group=belle"):
        jobs = msgspec.json.decode(get(alice, f"/jobs.json?{view}").text)
        assert f'<p class="note">1 of {len(jobs)} jobs</p>' in get(alice, f"/jobs?{view}&limit=1").text
    both = get(alice, "/jobs?outcome=failed&meta[VO][absent]=true&limit=1").text
    assert not re.search(r'<p class="note">1 of \d+ jobs</p>', both)


@pytest.mark.parametrize("path", [USAGE, MY])
def test_incomplete_bars_are_explained(alice: Browser, path: str) -> None:
    for bins, explained in (("bin=year", True), ("bin=day", False)):
        text = get(alice, f"{path}?from={BEGIN:%Y-%m-%d}&to={BEGIN + timedelta(days=7):%Y-%m-%d}&{bins}").text
        assert ("Incomplete (hatched bars, hollow dots): " in text) == ("url(#hatch)" in text) == explained


def test_amounts_have_their_units(alice: Browser) -> None:
    amounts = re.findall(
        r'<td class="number">([^<]+)</td>', get(alice, "/jobs/job%2F1").text.partition("Components")[2]
    )
    assert amounts == ["2", "7,200 s", "2,048 MiB", "1,800 s", "2"]
    asked = "component[Cores][gte]=2&component[Memory][lt]=4096&runtime[gte]=60&meta[Memory][dnc][]=x"
    found = [unescape(each) for each in re.findall(r'class="chip">([^<]+) <', get(alice, f"/jobs?{asked}").text)]
    assert found == ["Cores ≥ 2", "Memory < 4096 MiB", "Runtime ≥ 60 s", "Memory is not x"]


def test_requested_memory_is_shown_without_its_peak(alice: Browser) -> None:
    assert f'<td class="number">{NOTHING} / 2.0</td>' in get(alice, "/my?period=90-days").text


def test_every_page_of_a_list_has_its_length(alice: Browser) -> None:
    path, pages = "/jobs?limit=40", list[str]()
    while path:
        pages.append(get(alice, path).text)
        path = unescape("".join(re.findall(r'href="([^"]+)">Earlier records<', pages[-1])))
    assert [re.findall(r'<p class="note">(\d+ of \d+) jobs', page) for page in pages] == [["40 of 61"], ["21 of 61"]]


def test_a_row_of_job_sizes_leads_to_its_jobs(alice: Browser) -> None:
    for view in ("by=size", "by=size&bin=none", "by=group&then=size"):
        text = get(alice, f"/usage?period=all&measure=jobs&{view}").text
        rows = re.findall(r'<tr><th scope="row" class="fixed"><a href="([^"]+)">.*?class="number strong">(\d+)<', text)
        assert len(rows) == (12 if "group" in view else 4)
        for link, count in rows:
            assert f'<p class="note">{count} jobs</p>' in get(alice, unescape(link)).text
    marks = re.findall(
        r'<a href="([^"]+)" tabindex="-1"><title>5-8[^<]*</title>', get(alice, "/usage?by=size&bin=none").text
    )
    assert [unquote(unescape(link)) for link in marks] == [
        "/jobs?period=30-days&component[Cores][gte]=5&component[Cores][lte]=8"
    ]
    conflict = get(alice, "/usage?period=all&measure=jobs&by=size&component[Cores][gt]=6").text
    assert '<th scope="row" class="fixed">5-8</th>' in conflict  # a second lower limit would be refused


@pytest.mark.parametrize("path", ["/usage", "/usage.svg"])
def test_the_reason_for_an_empty_chart_is_the_true_one(alice: Browser, path: str) -> None:
    reasons = {
        "from=2001-01-01&to=2001-01-02": "No record stopped in this period.",
        "period=90-days&outcome=lost": "No record that matches the filters stopped in this period.",
        "period=90-days&measure=energy": "Energy is unknown: no record of this period has Energy",
        "period=90-days&measure=energy&user=bob": "Energy is unknown: no record of this period that matches the",
        "period=90-days&measure=gpu-hours": "GPU hours in this period: 0.",
    }
    for view, reason in reasons.items():
        text = get(alice, f"{path}?{view}").text
        assert [reason in text, "stopped in this period." in text] == [True, "stopped" in reason], view


def test_a_label_that_no_record_has_is_named_with_those_that_records_have(alice: Browser) -> None:
    remark = "None of these records has the label "
    for view in ("by=usr", "by=group&then=usr&site=KIT"):
        text = get(alice, f"/usage?period=90-days&{view}").text
        assert f"{remark}usr; recorded labels are VO, group_id, outcome, site_id, user_id" in text
    for view in ("by=VO", "by=group&then=VO", "by=size", "by=usr&group=nobody"):
        assert remark not in get(alice, f"/usage?period=90-days&{view}").text


def test_all_time_is_from_the_first_stop_to_the_last(alice: Browser) -> None:
    document = msgspec.json.decode(get(alice, "/usage.json?period=all&measure=jobs&bin=month&by=none").text)
    first = min(each.stop_time for each in FINISHED if each.stop_time is not None)
    assert document["from"].startswith(first.date().isoformat())
    assert document["total"]["jobs"] == sum(each["jobs"] for each in document["bins"].values()) == len(FINISHED)
    empty = get(alice, f"/usage?period=all&group={quote('of nobody')}").text
    assert "No record that matches the filters stopped in this period." in empty
