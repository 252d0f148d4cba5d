"""The costliest requests of readers: what they hold of the daemon is bounded, and ends when they leave."""

import asyncio
import csv
import gc
import io
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import ReferenceType, ref
from xml.etree.ElementTree import fromstring
from zipfile import ZipFile

import msgspec
import pytest

from auditord.client import Client
from auditord.store.aggregates import Folding
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord.web import limits
from auditord.web import places as places_of_answers
from auditord.web.api import sums
from auditord.web.page import figures, files
from auditord.web.page.rendering import Renderer
from auditord.web.places import ReadingPlaces
from auditord_hookspecs import AggregateQuery, Aggregates, Component, Group, Record, Score, TooManyGroups
from tests.api_server import Api, api_server, record
from tests.costly_requests import COSTLIEST, WHOLE
from tests.page_browser import HTML

FEW: Final = 40
MANY: Final = 300
MOST_CELLS: Final = 4_000
USERS: Final = 100
DAYS: Final = 30
BEGIN: Final = datetime(2026, 10, 1, tzinfo=UTC)
DAILY: Final = "by=user&bin=day&from=2026-10-01&to=2026-10-30"


def job(number: int) -> Record:
    """One of the jobs; each user has one on every fifth day."""
    day, user = number % DAYS, number // 6 % USERS
    stop = BEGIN + timedelta(days=day, hours=1 + number % 20)
    parts = (Component("Cores", 1 + user % 8, (Score("HEPscore23", 10.5),)), Component("TotalCPU", 100 + number, ()))
    meta: dict[str, tuple[str, ...]] = {"group_id": (f"g{user % 7}",), "user_id": (f"u{user}",)}
    meta |= {"job_name": (f"name {number}",)}
    return Record(f"job-{number}", stop - timedelta(minutes=30 + number), parts, stop, meta)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestDaemon]:
    with running_daemon(tmp_path_factory.mktemp("costly"), {}) as daemon:
        Client(daemon.url).add_all([job(number) for number in range(6 * USERS)])
        yield daemon


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few groups be many, and pages be answered as a whole, with their status."""
    monkeypatch.setattr("auditord.web.page.rendering._PATIENCE_SECONDS", 60)
    for module in (places_of_answers, figures):
        monkeypatch.setattr(module, "FEW_GROUPS", FEW)
        monkeypatch.setattr(module, "MANY_GROUPS", MANY)
    monkeypatch.setattr(figures, "MOST_CELLS", MOST_CELLS)


def ask(daemon: TestDaemon, target: str) -> tuple[int, bytes]:
    connection = HTTPConnection(urlsplit(daemon.url).netloc, timeout=60)
    connection.request("GET", target, headers=HTML)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def noting(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, note: Callable[[Any], None]) -> None:  # Any: a class
    """Note what a function returns, each time."""
    work = getattr(where, name)

    def noted(*args: Any, **named: Any) -> Any:
        result = work(*args, **named)
        note(result)
        return result

    monkeypatch.setattr(where, name, noted)


@pytest.mark.usefixtures("narrow")
def test_eight_readers_of_all_that_is_costly_hold_little(daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, threads = list[int](), set[str]()

    def note_thread(_result: object) -> None:
        threads.add(threading.current_thread().name)

    noting(monkeypatch, Folding, "result", lambda answer: sizes.append(len(answer.groups)))
    noting(monkeypatch, sums, "_write_groups", note_thread)
    noting(monkeypatch, files, "join_pieces", note_thread)
    targets = [target for targets in COSTLIEST.values() for target in targets]
    with ThreadPoolExecutor(8) as readers:
        asked = [readers.submit(ask, daemon, target) for target in targets]
        while not all(each.done() for each in asked):
            assert ask(daemon, "/health_check") == (200, b"")
        answers = dict(zip(targets, [each.result()[0] for each in asked], strict=True))
    assert {target: status for target, status in answers.items() if status not in {200, 303, 400, 403, 404}} == {}
    assert {status for target, status in answers.items() if target.startswith("/usage?")} == {200, 400}
    assert max(sizes) <= MANY
    assert threads == {"answers"}  # the event loop is not held
    by_route = {target.partition("?")[0] for target in targets}
    assert by_route >= {"/usage", "/jobs", "/records", "/api/v1/records", "/api/v1/aggregates", "/usage.svg", "/panels"}


class Groups(list[Group]):
    """The groups of an answer, which can be told to be gone."""


@pytest.mark.usefixtures("narrow")
def test_files_that_wait_for_their_turn_hold_no_sums(daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    made, most = list[ReferenceType[Groups]](), 0
    work = Folding.result

    def noted(folding: Folding) -> Aggregates:
        nonlocal most
        answer = work(folding)
        groups = Groups(answer.groups)
        made.append(ref(groups))
        most = max(most, sum(each() is not None for each in made))
        return msgspec.structs.replace(answer, groups=groups)

    monkeypatch.setattr(Folding, "result", noted)
    gc.disable()  # sums that only a cycle of references keeps would stay for an unknown time
    try:
        with ThreadPoolExecutor(24) as readers:
            asked = [readers.submit(ask, daemon, f"/usage.csv?{DAILY}") for _ in range(24)]
            answers = [each.result() for each in asked]
    finally:
        gc.enable()
    assert {status for status, _ in answers} == {200}
    # Those of half of api.max_long_reads, and as many that their threads have just added up, not one for each reader.
    assert most < 20


def table(form: str, body: bytes) -> list[list[str]]:
    """The rows of a file."""
    if form == "csv":
        return list(csv.reader(io.StringIO(body.decode())))
    if form == "json":
        return [body.decode().splitlines()]
    if form == "parquet":
        read = pytest.importorskip("pyarrow.parquet").read_table(io.BytesIO(body))
        return [[str(value) for value in row.values()] for row in read.to_pylist()]
    with ZipFile(io.BytesIO(body)) as file:
        sheet = fromstring(file.read("xl/worksheets/sheet1.xml"))  # noqa: S314 our own
    return [["".join(cell.itertext()) for cell in row] for row in sheet.findall(".//{*}row")]


@pytest.mark.parametrize("form", ["csv", "json", "xlsx", "parquet"])
@pytest.mark.parametrize("view", [DAILY, f"{DAILY}&measure=cpu-efficiency", f"by=user&bin=none&{WHOLE}"])
def test_a_file_made_by_parts_is_that_made_at_once(
    daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch, form: str, view: str
) -> None:
    status, whole = ask(daemon, f"/usage.{form}?{view}")
    asked = list[AggregateQuery]()
    for module in (places_of_answers, figures):
        monkeypatch.setattr(module, "FEW_GROUPS", FEW)
        monkeypatch.setattr(module, "MANY_GROUPS", 2 * USERS)  # with and without a CPU time
    noting(monkeypatch, Folding, "result", asked.append)
    assert (status, ask(daemon, f"/usage.{form}?{view}")[0]) == (200, 200)
    assert table(form, ask(daemon, f"/usage.{form}?{view}")[1]) == table(form, whole)
    assert len(table(form, whole)[0]) > 1
    assert len(asked) >= (2 if "none" in view else 10)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("target", "text"),
    [
        (f"/usage.csv?{DAILY.replace('10-01', '09-01')}", "100 rows by 60 bins are 6,000 cells"),
        (f"/usage.xlsx?by=job_name&bin=none&{WHOLE}", "more than 300 rows"),
        (f"/usage?by=job_name&bin=day&{WHOLE}", "more than 300 rows"),
        ("/api/v1/aggregates?by=meta:job_name", "more than 300 groups"),
    ],
)
def test_what_is_too_large_is_refused_with_what_to_narrow(daemon: TestDaemon, target: str, text: str) -> None:
    status, body = ask(daemon, target)
    assert (status, text in body.decode()) == (400, True), body.decode()
    assert "period" in body.decode()


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("by", ["user", "group"])
def test_a_table_of_many_cells_shows_the_largest_rows_and_the_same_totals(
    daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    target = f"/usage?{DAILY.replace('user', by)}&top=5"
    status, narrow = ask(daemon, target)
    monkeypatch.undo()
    assert (status, without_notices(narrow)) == (200, without_notices(ask(daemon, target)[1]))


def without_notices(page: bytes) -> Sequence[str]:
    """The words of a page behind its frame."""
    return page.decode().partition('class="summary"')[2].split()


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/api/v1/aggregates?by=meta:site_id", "/records"])
async def test_what_is_read_for_a_client_ends_when_it_leaves(tmp_path: Path, path: str) -> None:
    async with api_server(tmp_path, options={"max_long_reads": 2}) as api:
        assert (await api.post([record("r-1")])).status == 200
        begun, ended = held(api)
        sock = socket.create_connection(("127.0.0.1", int(api.url.rpartition(":")[2])))
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        async with asyncio.timeout(30):
            await begun.wait()
            sock.close()
            await ended.wait()
            api.faults.held = None
            assert (await api.get(path)).status == 200  # of this client's places, of which there is one, none is held


def held(api: Api) -> tuple[asyncio.Event, asyncio.Event]:
    """Have all reading wait, and note that it has begun, and that it was cancelled."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    api.faults.held = wait
    return begun, ended


@pytest.mark.anyio
async def test_a_place_is_held_until_the_thread_that_works_in_it_is_done() -> None:
    places, go_on, begun = ReadingPlaces(2), threading.Event(), asyncio.Event()
    loop, done = asyncio.get_running_loop(), list[str]()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(30)
        done.append("work")

    async def answer() -> None:
        async with places.large("reader"):
            await places.run(work)

    async def next_answer() -> None:
        async with places.large("reader"):
            done.append("next")

    leaving = asyncio.create_task(answer())
    await begun.wait()
    leaving.cancel()
    waiting = asyncio.create_task(next_answer())
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait([leaving, waiting])
    assert (done, leaving.cancelled()) == (["work", "next"], True)
    places.close()


@pytest.mark.anyio
async def test_large_sums_of_one_principal_wait_for_each_other_and_for_nobody_else() -> None:
    places, under_way, most = ReadingPlaces(8), dict[str, int](), dict[str, int]()
    together = asyncio.Barrier(2)

    async def aggregate(who: str, query: AggregateQuery) -> Aggregates:
        if query.most_groups != limits.MANY_GROUPS:
            raise TooManyGroups("many")
        under_way[who] = under_way.get(who, 0) + 1
        most[who] = max(most.get(who, 0), under_way[who])
        await together.wait()  # another principal is at work at the same time
        under_way[who] -= 1
        return Aggregates((), 1)

    async def ask_for(who: str) -> None:
        async with places.sum_up(who, lambda query: aggregate(who, query), AggregateQuery()):
            pass

    async with asyncio.timeout(30):
        await asyncio.gather(*(ask_for(who) for who in ("a", "b") * 4))
    assert most == {"a": 1, "b": 1}
    places.close()


def test_pages_are_made_beside_the_event_loop(daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = dict[str, set[str]]()
    answer = Renderer.answer

    def noted(renderer: Renderer, template: str, values: Any, *args: Any) -> Any:  # Any: passed on
        if not values.get("is_frame"):
            threads.setdefault(template, set()).add(threading.current_thread().name)
        return answer(renderer, template, values, *args)

    monkeypatch.setattr(Renderer, "answer", noted)
    assert [ask(daemon, target)[0] for target in ("/usage?by=user", "/jobs?limit=1000")] == [200, 200]
    assert (threads["usage.html"], threads["jobs.html"]) == ({"answers"}, {"answers"})
