"""Pages whose figures take long: the frame first, the rest in the same answer, whatever becomes of it."""

import asyncio
import gzip
import re
import threading
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from email.message import Message
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import pytest

from auditord.errors import StoreUnavailable
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord.web.page.figures import Figures
from auditord.web.page.rendering import FIGURES
from tests.page_browser import HTML

PATHS = ("/", "/usage", "/usage?by=user&measure=jobs&site=nowhere", "/jobs", "/operations")

NOTICE = 'class="waiting"'
Fault = Callable[[], Exception]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestDaemon]:
    with running_daemon(tmp_path_factory.mktemp("late"), {}) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord.web.page.rendering._PATIENCE_SECONDS", 0)


@contextmanager
def asked(daemon: TestDaemon, path: str, headers: Mapping[str, str] = HTML) -> Generator[HTTPResponse, None, None]:
    with closing(HTTPConnection(urlsplit(daemon.url).netloc, timeout=60)) as connection:
        connection.request("GET", path, headers=dict(headers))
        with connection.getresponse() as answer:
            yield answer


def ask(daemon: TestDaemon, path: str) -> tuple[int, Message, str]:
    with asked(daemon, path) as answer:
        return answer.status, answer.headers, answer.read().decode()


def held(monkeypatch: pytest.MonkeyPatch, fault: Fault | None = None) -> threading.Event:
    """No report is made until this is set; then it is, or it fails."""
    go_on, report = threading.Event(), Figures.report

    async def wait(*args: Any) -> Any:  # Any: handed on
        assert await asyncio.to_thread(go_on.wait, 30)
        if fault is not None:
            raise fault()
        return await report(*args)

    monkeypatch.setattr(Figures, "report", wait)
    return go_on


def read_frame(answer: HTTPResponse) -> str:
    found = b""
    while NOTICE.encode() not in found:
        found += answer.read1()
    return found.decode()


def comparable(page: str) -> list[str]:
    return re.sub(rf"<p {NOTICE}.*?</p>|{FIGURES}|<title>.*?</title>|<time[^>]*>[^<]*</time>", "", page).split()


@pytest.mark.parametrize("path", PATHS)
def test_a_late_page_is_the_same_page(daemon: TestDaemon, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord.web.page.rendering._PATIENCE_SECONDS", 60)
    _, headers, expected = ask(daemon, path)
    monkeypatch.setattr("auditord.web.page.rendering._PATIENCE_SECONDS", 0)
    status, of_late, page = ask(daemon, path)
    assert (status, NOTICE in page, NOTICE in expected) == (200, True, False)
    assert comparable(page) == comparable(expected)
    told = ("Content-Security-Policy", "Cache-Control", "Vary", "Content-Type", "X-Content-Type-Options")
    assert [of_late[name] for name in told] == [headers[name] for name in told]


@pytest.mark.usefixtures("impatient")
def test_the_form_is_there_before_the_figures(daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = held(monkeypatch)
    with asked(daemon, "/usage?by=user") as answer:
        frame = read_frame(answer)
        assert '<option value="user" selected>' in frame
        assert 'class="summary"' not in frame
        go_on.set()
        assert "summary" in answer.read().decode()


@pytest.mark.usefixtures("impatient")
def test_a_compressed_frame_can_be_read_before_the_figures(daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = held(monkeypatch)
    with asked(daemon, "/usage", {**HTML, "Accept-Encoding": "gzip, deflate"}) as answer:
        begin, found, unpacked = zlib.decompressobj(wbits=31), b"", b""
        while NOTICE.encode() not in unpacked:
            found += (more := answer.read1())
            unpacked += begin.decompress(more)
        go_on.set()
        assert "summary" in gzip.decompress(found + answer.read()).decode()
        assert answer.headers["Content-Encoding"] == "gzip"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (lambda: StoreUnavailable("it is away"), "The record store does not answer"),
        (lambda: RuntimeError("a mistake"), "log has the reason"),
    ],
)
def test_a_fault_behind_the_frame_is_said_in_the_page(
    daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch, fault: Fault, text: str
) -> None:
    go_on = held(monkeypatch, fault)
    with asked(daemon, "/usage") as answer:
        read_frame(answer)
        go_on.set()
        rest = answer.read().decode()
    assert text in rest
    assert rest.rstrip().endswith("</html>")


@pytest.mark.usefixtures("impatient")
def test_what_is_known_at_once_has_its_status(daemon: TestDaemon) -> None:
    assert ask(daemon, "/usage?top=none")[0] == 400
    assert ask(daemon, "/jobs?filters=1")[0] == 303
    assert ask(daemon, "/nothing")[0] == 404
