"""Every route over a real socket: statuses, bodies and headers, as clients, curl and proxies see them."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path

import pytest

from auditord import __version__
from auditord.duplicates import Duplicates
from tests.json_objects import objects

SERVER = Path(__file__).with_name("server_process.py")

JSON = {"content-type": "application/json"}
NINTH, TENTH = "2022-08-09T00%3A00%3A00%2B00%3A00", "2022-08-10T00%3A00%3A00%2B00%3A00"
COMPONENT: dict[str, object] = {"name": "comp-1", "amount": 10, "scores": []}


@dataclass(frozen=True)
class Answer:
    """An answer."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Server:
    """A running server, asked over one new connection each time."""

    port: int

    def ask(self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, target, sent, dict(JSON if headers is None else headers))
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, response.reason, named, response.read())
        finally:
            connection.close()

    def ids(self, query: str) -> list[str]:
        """The ids that a query finds, in their order."""
        answer = self.ask("GET", f"/records?{query}")
        assert answer.status == 200, answer.body
        return [found["record_id"] for found in objects(answer.body)]


def record(record_id: str, **members: object) -> dict[str, object]:
    members_by_default: dict[str, object] = {
        "record_id": record_id,
        "meta": None,
        "components": [COMPONENT],
        "start_time": "2022-08-08T12:00:00Z",
        "stop_time": "2022-08-09T12:00:00Z",
    }
    return members_by_default | members


@pytest.fixture(scope="module")
def server(port: int) -> Server:
    found = Server(port)
    batch = [
        record("record-01", meta={"group_id": ["group_1"], "site_id": ["A/1"]}),
        record("record-02", meta={"group_id": ["group_1", "x"], "vo": ["x", "v3"]}, stop_time="2022-08-09T11:00:00Z"),
        record("record-03", meta={"site_id": ["B & C"], "vo": ["v4"]}, stop_time="2022-08-08T12:06:40Z"),
        record("s#1.0#17", start_time="2022-08-08T16:00:00Z", stop_time="2022-08-08T16:05:00Z"),
        record("a/b c&d=e+f%20", components=[], stop_time=None),
        record("ünï©ode", components=[COMPONENT | {"name": "x"}, COMPONENT], stop_time=None),
    ]
    assert found.ask("POST", "/records", batch).status == 200
    return found


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("record_id=record-03", ["record-03"]),
        ("record_id=s%231.0%2317", ["s#1.0#17"]),
        ("record_id=a%2Fb+c%26d%3De%2Bf%2520", ["a/b c&d=e+f%20"]),
        ("record_id=%C3%BCn%C3%AF%C2%A9ode", ["ünï©ode"]),
        ("start_time[gt]=2022-08-08T15%3A30%3A00%2B00%3A00", ["s#1.0#17"]),
        (
            "start_time[gt]=2022-08-08T11%3A30%3A00%2B00%3A00&stop_time[gt]=2022-08-09T11%3A30%3A00%2B00%3A00",
            ["record-01"],
        ),
        (
            "start_time[gt]=2022-08-08T15%3A30%3A00%2B00%3A00&start_time[lt]=2022-08-08T15%3A30%3A00%2B00%3A00",
            [],
        ),
        ("stop_time[gte]=2022-08-09T11%3A00%3A00%2B00%3A00", ["record-02", "record-01"]),
        (
            f"stop_time[lt]={TENTH}&stop_time[gte]={NINTH}&runtime[gt]=0&meta[site_id][c][0]=A%2F1",
            ["record-01"],
        ),
        ("meta[group_id][c][0]=group_1", ["record-02", "record-01"]),
        ("meta[group_id][c][0]=placeholder", []),
        ("meta[site_id][dnc][0]=A%2F1", ["record-03"]),
        ("meta[vo][c][0]=v4&meta[site_id][c][0]=B+%26+C", ["record-03"]),
        ("meta[vo][c][0]=x&meta[vo][c][1]=v3", ["record-02"]),
        ("meta%5Bvo%5D%5Bc%5D%5B0%5D=v4", ["record-03"]),
        ("meta[vo][c]=v4", ["record-03"]),
        ("component[comp-1][equals]=10&limit=1", ["record-03"]),
        ("component[comp-1][equals]=10&sort_by[desc]=record_id&limit=1", ["ünï©ode"]),
        ("component[placeholder][equals]=8", []),
        ("runtime[gt]=500&sort_by[asc]=runtime", ["record-02", "record-01"]),
        ("runtime[lt]=500&runtime[gte]=300", ["record-03", "s#1.0#17"]),
        ("runtime[equals]=400", ["record-03"]),
        ("sort_by[desc]=start_time&limit=1", ["s#1.0#17"]),
        ("sort_by[asc]=record_id&limit=3", ["a/b c&d=e+f%20", "record-01", "record-02"]),
        ("limit=0", []),
        ("", ["record-03", "s#1.0#17", "record-02", "record-01", "a/b c&d=e+f%20", "ünï©ode"]),
    ],
)
def test_what_clients_ask_for(server: Server, query: str, expected: list[str]) -> None:
    assert server.ids(query) == expected


def test_the_answer_is_a_stream_of_objects(server: Server) -> None:
    answer = server.ask("GET", "/records")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.body.startswith(b'{"record_id":"record-03","meta":{')
    assert b"}{" in answer.body
    assert not any(separator in answer.body for separator in (b"}\n", b'},{"record_id', b"} "))


def test_an_empty_answer_is_empty(server: Server) -> None:
    answer = server.ask("GET", "/records?limit=0")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "target", "status", "body"),
    [
        ("GET", "/record/record-03", 200, None),
        ("GET", "//record//record-03/", 200, None),
        ("GET", "/record/a%2Fb%20c&d=e+f%2520", 200, None),
        ("GET", "/record/s%231.0%2317", 200, None),
        ("GET", "/record/%C3%BCn%C3%AF%C2%A9ode", 200, None),
        ("GET", "http://proxy.example/record/record-03", 200, None),
        ("GET", "/record/%20%09", 200, b"null"),
        ("GET", "/record/%FF", 200, b"null"),
        ("GET", "/record/" + "x" * 257, 200, b"null"),
        ("GET", "/record/unknown", 404, None),
        ("GET", "/record/a/b", 404, b"There is nothing at this path."),
        ("GET", "/", 200, f"auditord {__version__}: the API is at /openapi.json\n".encode()),
        ("GET", "/add", 404, b"There is nothing at this path."),
        ("GET", "/record/a%252Fb", 404, None),
        ("GET", "/records?state=started&since=2022-01-01T00:00:00Z", 400, None),
        ("GET", "/records/", 200, None),
        ("GET", "//health_check", 200, b""),
    ],
)
def test_paths(server: Server, method: str, target: str, status: int, body: bytes | None) -> None:
    answer = server.ask(method, target)
    assert answer.status == status
    if body is not None:
        assert answer.body == body


def test_unknown_paths_have_no_content_type(server: Server) -> None:
    assert "content-type" not in server.ask("GET", "/nothing").headers


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("HEAD", "/record/record-03", "GET"),
        ("HEAD", "/records", "GET, POST"),
        ("HEAD", "/health_check", "GET"),
        ("GET", "/record", "POST, PUT"),
        ("DELETE", "/record", "POST, PUT"),
        ("PUT", "/records", "GET, POST"),
        ("OPTIONS", "/metrics", "GET"),
    ],
)
def test_wrong_methods_are_told_the_right_ones(server: Server, method: str, target: str, allowed: str) -> None:
    answer = server.ask(method, target)
    assert (answer.status, answer.body, answer.headers["allow"]) == (405, b"", allowed)


def test_one_record_is_one_object(server: Server) -> None:
    answer = server.ask("GET", "/record/record-03")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.body == (
        b'{"record_id":"record-03","meta":{"site_id":["B & C"],"vo":["v4"]},"components":[{"name":"comp-1","amount":10,'
        b'"scores":[]}],"start_time":"2022-08-08T12:00:00Z","stop_time":"2022-08-08T12:06:40Z","runtime":400}'
    )


@pytest.mark.parametrize(
    ("query", "text"),
    [("limit=x", "limit"), ("start_time[gt]=2022-08-08T11:30:00Z&start_time[gte]=2022-08-08T11:30:00Z", "gt and gte")],
)
def test_a_bad_query_is_explained_as_json(server: Server, query: str, text: str) -> None:
    answer = server.ask("GET", f"/records?{query}")
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"
    assert text in json.loads(answer.body)["error"]


def test_posting_answers_200_without_a_body(server: Server) -> None:
    for path, body in (("/record", record("posted-1")), ("/records", [record("posted-2")]), ("/records", [])):
        answer = server.ask("POST", path, body)
        assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")
        assert "content-type" not in answer.headers


def test_another_run_under_a_known_id_is_refused_with_exactly_these_bytes(server: Server) -> None:
    other = record("record-01", start_time="2021-01-01T00:00:00Z")
    for path, body in (("/record", other), ("/records", [record("rolled-back"), other])):
        answer = server.ask("POST", path, body)
        assert (answer.status, answer.body) == (500, b"RECORD_EXISTS")
    assert server.ask("GET", "/record/rolled-back").status == 404


def test_a_batch_that_contradicts_itself_is_rolled_back(server: Server) -> None:
    batch = [record("twice"), record("twice", start_time="2021-01-01T00:00:00Z")]
    assert server.ask("POST", "/records", batch).body == b"RECORD_EXISTS"
    assert server.ask("GET", "/record/twice").status == 404


def test_a_record_with_both_forms_of_an_amount_is_refused(server: Server) -> None:
    both: list[dict[str, object]] = [{"name": name, "amount": 1, "scores": []} for name in ("Cores", "CoreSeconds")]
    answer = server.ask("POST", "/record", record("both", components=both))
    assert answer.status == 400
    assert (
        b"'CoreSeconds' failed: the record also has Cores, and would count twice: leave one of them out" in answer.body
    )
    assert server.ask("POST", "/record", record("total", components=both[1:])).status == 200


def test_a_bad_element_refuses_the_whole_batch(server: Server) -> None:
    answer = server.ask("POST", "/records", [record("good"), record("bad\0")])
    assert answer.status == 400
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.body.startswith(b"Json deserialize error: ")
    assert server.ask("GET", "/record/good").status == 404


def test_an_update_sets_the_stop_time_and_nothing_else(server: Server) -> None:
    server.ask("POST", "/record", record("tardis", stop_time=None, start_time="2022-08-08T12:00:00.079043Z"))
    moment = "2022-08-08T14:00:01.000Z"
    body = record("tardis", components=[], meta={"k": ["v"]}, start_time=moment, stop_time=moment)
    answer = server.ask("PUT", "/record", body)
    assert (answer.status, answer.body) == (200, b"")
    found = json.loads(server.ask("GET", "/record/tardis").body)
    assert found == record("tardis", start_time="2022-08-08T12:00:00.079043Z", stop_time="2022-08-08T14:00:01Z") | {
        "runtime": 7200
    }


def test_an_update_of_nothing_is_a_404_with_the_phrase_that_tardis_looks_for(server: Server) -> None:
    answer = server.ask("PUT", "/record", record("unknown"))
    assert (answer.status, answer.reason) == (404, "Not Found")
    assert b"'unknown'" in answer.body


@pytest.mark.parametrize("change", [{"stop_time": None}, {"components": None}])
def test_an_update_needs_its_members(server: Server, change: dict[str, None]) -> None:
    answer = server.ask("PUT", "/record", record("record-01") | change)
    assert answer.status == 400
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


def test_health(server: Server) -> None:
    answer = server.ask("GET", "/health_check")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")


def test_metrics_have_a_type_and_count_requests(server: Server) -> None:
    server.ask("GET", "/health_check")
    answer = server.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.body.decode()
    assert 'auditord_http_requests_total{method="GET",route="/health_check",status="200"}' in text
    assert 'http_server_active_requests{http_request_method="GET",http_route="/metrics"} 1\n' in text
    assert 'http_server_request_size_bytes_bucket{http_request_method="POST",http_response_status_code="200"' in text


def test_curl_works_as_it_is_used_in_scripts(server: Server) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    base = f"http://127.0.0.1:{server.port}"
    body = json.dumps(record("curl-1", start_time="2023-09-18T15:33:00+00:00", stop_time=None) | {"runtime": 39964})
    large = json.dumps([record(f"curl-large-{number}") for number in range(20_000)])  # makes curl ask before it sends
    for path, data in (("record", body), ("records", large)):
        command = [
            curl,
            "-sS",
            "--fail",
            "-H",
            "Content-Type: application/json",
            "--data-binary",
            "@-",
            f"{base}/{path}",
        ]
        done = subprocess.run(command, input=data, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == ""
    command = [curl, "-sS", "--fail", "-g", f"{base}/records?record_id=curl-1&start_time[equals]=2023-09-18T15:33:00Z"]
    [found] = objects(subprocess.run(command, capture_output=True, timeout=60, check=True).stdout)
    assert found["runtime"] is None
    assert len(server.ids("meta[x][unknown]=1")) >= 20_001


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_the_unix_socket_serves_the_same(start_server: Callable[[Duplicates], int], tmp_path: Path) -> None:
    start_server(Duplicates.SAME_RUN)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(tmp_path / "api.sock"))
        client.sendall(b"GET /health_check HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert client.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"


def test_what_was_acknowledged_survives_a_kill(store_url: str, tmp_path: Path) -> None:
    """Posts run into a ``kill -9``; whatever was answered with 200 before is there afterwards."""
    command = [sys.executable, str(SERVER), str(tmp_path), store_url, "same-run", "127.0.0.1:0"]
    acknowledged: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = Server(int(json.loads(process.stdout.readline())[0].rpartition(":")[2]))

        def post(worker: int) -> None:
            with suppress(OSError, HTTPException):
                for number in count():
                    name = f"{worker}-{number}"
                    if server.ask("POST", "/record", record(name)).status == 200:
                        acknowledged.append(name)
                    if len(acknowledged) == 300:
                        process.kill()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(post, range(8)))
        process.wait(20)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = Server(int(json.loads(process.stdout.readline())[0].rpartition(":")[2]))
        found = server.ids("")
        process.terminate()
        assert process.wait(20) == 0
    assert len(acknowledged) >= 300
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))
