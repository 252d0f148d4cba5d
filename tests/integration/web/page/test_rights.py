"""Six callers with different rights: suggestions, files of jobs and shares show nothing of other people's records."""

import csv
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote
from urllib.request import Request, urlopen
from zipfile import ZipFile

import msgspec
import pytest

from auditord.client import Client
from auditord.testing.daemon import running_daemon
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_hookspecs import Component, Record
from tests.page_browser import Browser

NOW: Final = datetime.now(UTC)
LABELS: Final = ("site_id", "group_id", "user_id", "outcome", "secret", "VO")


def job(number: int, site: str, group: str, user: str, cores: int, **more: tuple[str, ...]) -> Record:
    stop = NOW - timedelta(minutes=number)
    meta = {"site_id": (site,), "group_id": (group,), "user_id": (user,), **more}
    parts = (Component("Cores", cores, ()), Component(f"Of{group}", 1, ()))
    return Record(f"{group}/{number}", stop - timedelta(hours=1), parts, stop, meta)


RECORDS: Final = [
    *(job(number, "KIT", "belle", "alice", 4, outcome=("failed",)) for number in range(3)),
    *(job(number, "DESY", "belle", "carol", 4, VO=("of-carol",)) for number in range(3, 5)),
    *(job(number, "KIT", "atlas", "bob", 8, secret=("x-ray", "zeta")) for number in range(5, 10)),
]

ROLES: Final[Mapping[str, Mapping[str, object]]] = {
    "leader": {"permissions": ["read"], "rows": {"group_id": ["belle"]}},
    "totals": {"permissions": ["read"], "rows": {"group_id": ["belle"]}, "totals": True},
    "alice": {"permissions": ["read"], "rows": {"user_id": ["self"]}},
    "site": {"permissions": ["read"], "rows": {"site_id": ["KIT"]}},
    "nothing": {"permissions": ["read"], "rows": {"group_id": ["of nobody"]}},
}
Predicate: TypeAlias = Callable[[Mapping[str, tuple[str, ...]]], bool]
SEES: Final[Mapping[str, Predicate]] = {
    "administrator": lambda _: True,
    "leader": lambda meta: "belle" in meta["group_id"],
    "totals": lambda meta: "belle" in meta["group_id"],
    "alice": lambda meta: "alice" in meta["user_id"],
    "site": lambda meta: "KIT" in meta["site_id"],
    "nothing": lambda _: False,
}
callers = pytest.mark.parametrize("caller", SEES)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Browser]]:
    folder = tmp_path_factory.mktemp("rights")
    (folder / "state").mkdir(mode=0o700)
    tokens = {name: new_token(name, [name], NOW, None) for name in SEES}
    TokenFile(folder / "state").change(lambda _: [stored for stored, _ in tokens.values()])
    sections = {"authenticators": {"tokens": {"kind": "tokens"}}, "access": {"roles": ROLES}}
    with running_daemon(folder, sections) as daemon:
        Client(daemon.url, token=tokens["administrator"][1]).add_all(RECORDS)
        browsers = {
            name: Browser(daemon.url, headers={"Authorization": f"Bearer {token}"})
            for name, (_, token) in tokens.items()
        }
        for path in ("/usage", "/jobs", *(f"/suggestions?label={name}" for name in LABELS)):
            assert browsers["administrator"].get(path).status == 200  # what is kept for them is for nobody else
        yield browsers


def seen_by(caller: str) -> list[Record]:
    return [each for each in RECORDS if SEES[caller](each.meta or {})]


@callers
@pytest.mark.parametrize("label", LABELS)
def test_suggested_values_are_those_of_visible_records(site: Mapping[str, Browser], caller: str, label: str) -> None:
    first = {values[0] for each in seen_by(caller) if (values := (each.meta or {}).get(label, ()))}
    got = site[caller].get(f"/suggestions?label={label}")
    assert (got.status, set(msgspec.json.decode(got.text))) == (200, first)
    for value in first:
        part = quote(value[1:].upper())
        assert value in msgspec.json.decode(site[caller].get(f"/suggestions?label={label}&text={part}").text)
    assert msgspec.json.decode(site[caller].get(f"/suggestions?label={label}&text=of%20nobody").text) == []


@callers
@pytest.mark.parametrize("path", ["/usage", "/jobs", "/my"])
def test_forms_offer_labels_and_values_of_visible_records(site: Mapping[str, Browser], caller: str, path: str) -> None:
    site[caller].get(path)
    text = unescape(site[caller].get(path).text)
    offered = {
        name: re.findall(r'<option value="([^"]*)">', found)
        for name, found in re.findall(r'<datalist id="([^"]+)">(.*?)</datalist>', text, re.DOTALL)
    }
    seen = seen_by(caller)
    assert set(offered["labels"]) == {key for each in seen for key in each.meta or {}}
    assert set(offered["component-names"]) == {part.name for each in seen for part in each.components}
    if path != "/my":
        assert set(offered["values-user"]) == {(each.meta or {})["user_id"][0] for each in seen}
    if path == "/usage":
        groups = re.search(r'<select name="by">(.*?)</select>', text, re.DOTALL)
        assert groups is not None
        assert ("secret" in groups[1], "VO" in groups[1]) == (
            any("secret" in (each.meta or {}) for each in seen),
            any("VO" in (each.meta or {}) for each in seen),
        )


@callers
def test_files_of_jobs_have_the_visible_records(site: Mapping[str, Browser], caller: str) -> None:
    view = "column=user&column=secret&column=cores&column=core_hours&sort_by[asc]=record_id"
    rows = list(csv.reader(io.StringIO(site[caller].get(f"/jobs.csv?{view}").text)))
    assert rows[0] == ["record_id", "user", "cores", "core_hours", "secret"]
    expected = [
        [each.record_id, (each.meta or {})["user_id"][0], str(each.components[0].amount)]
        for each in sorted(seen_by(caller), key=lambda each: each.record_id)
    ]
    assert [row[:3] for row in rows[1:]] == expected
    document = msgspec.json.decode(site[caller].get(f"/jobs.json?{view}").text)
    assert [[each["record_id"], each["user"], str(each["cores"])] for each in document] == expected
    assert all(each["core_hours"] == each["cores"] for each in document)


@callers
@pytest.mark.parametrize("path", ["/", "/usage?by=user&period=7-days", "/usage?by=group&then=outcome&period=7-days"])
def test_a_restricted_role_sees_shares_of_the_whole_or_none(
    site: Mapping[str, Browser], caller: str, path: str
) -> None:
    text = unescape(site[caller].get(path).text)
    headings = set(re.findall(r">(Share[^<]*)<", text))
    restricted = {"totals": {"Share of all %"} if path != "/" or NOW.day > 1 else headings}
    assert headings == ({"Share %"} if caller == "administrator" else restricted.get(caller, set()))
    assert "100.0" not in re.sub(r"<tfoot>.*?</tfoot>", "", text) or caller == "administrator"


def test_the_share_of_a_leader_is_of_all_records_of_the_period(site: Mapping[str, Browser]) -> None:
    for filters in ("", "&outcome=failed", "&user=alice", "&component[Cores][gte]=2"):
        text = site["totals"].get(f"/usage?by=group&period=7-days{filters}").text
        cells = re.search(r"<tfoot>.*?</th><td class=\"number\">([\d.]+)</td><td class=\"number\">([\d.]+)<", text)
        assert cells is not None
        assert abs(float(cells[2]) - 100 * float(cells[1]) / 60) < 0.06, filters
        assert ("bob" in text, "atlas" in text) == (False, False)
    elsewhere = site["totals"].get("/usage?by=group&period=7-days&timezone=Etc/GMT-1").text
    assert "Share" not in re.sub(r"<(script|style).*?</\1>", "", elsewhere, flags=re.DOTALL), "it would tell an hour's"
    nobody = site["totals"].get("/usage?by=group&period=7-days&user=bob").text
    assert "No record that matches the filters stopped in this period." in nobody


@pytest.mark.parametrize("caller", ["administrator", "leader", "site"])
def test_the_command_of_a_view_prints_what_its_reader_may_see(
    site: Mapping[str, Browser], caller: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(site[caller].headers["Authorization"].removeprefix("Bearer "))
    token.chmod(0o600)
    text = unescape(site[caller].get("/usage?by=group&period=7-days&bin=none&measure=jobs").text)
    line = re.search(r"<code>(auditord report [^<]+)</code>", text)
    assert line is not None
    words = [*shlex.split(line[1])[1:], "--token-file", str(token), "--output", "json"]
    printed = subprocess.run(
        [sys.executable, "-m", "auditord", *words], capture_output=True, check=True, cwd=tmp_path, timeout=120
    )
    assert msgspec.json.decode(printed.stdout)["total"]["jobs"] == len(seen_by(caller))
    assert "add <code>--token-file FILE</code>" in text


def test_a_file_of_jobs_is_bounded_and_needs_no_page(
    site: Mapping[str, Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = site["administrator"]
    asked = Request(f"{admin.url}/jobs.xlsx?column=cores", headers=admin.headers)  # noqa: S310 our own server
    with urlopen(asked) as answer, ZipFile(io.BytesIO(answer.read())) as file:  # noqa: S310 the same
        assert file.read("xl/worksheets/sheet1.xml").count(b"<row ") == len(RECORDS) + 1
    monkeypatch.setattr("auditord.web.page.job_files.MOST_CELLS", 2 * (len(RECORDS) - 1))
    refused = admin.get("/jobs.csv?column=cores")
    assert (refused.status, "more than 9 jobs with 2 columns" in refused.text) == (400, True)
    assert admin.get("/jobs.csv?column=cores&group=belle").status == 200
    assert admin.get("/jobs.csv?limit=5").status == 400
