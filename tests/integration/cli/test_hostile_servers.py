"""``--url`` names a server of others: whatever it sends without end is refused, and takes little memory."""

import re
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Final

import pytest
from click.testing import CliRunner

from auditord.cli import auditord
from auditord.cli.daemon_client import LARGEST_ANSWER
from auditord.testing import make_record
from auditord_hookspecs.wire import encode_record

HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n"
LINE: Final = encode_record(make_record("job-1")) + b"\n"


class Hostile:
    """A server that repeats the same bytes as an answer until its client leaves."""

    url = ""
    sent = 0


@contextmanager
def endless(piece: bytes, head: bytes = HEAD) -> Generator[Hostile, None, None]:
    hostile = Hostile()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def serve() -> None:
            with listener.accept()[0] as connection, suppress(OSError):
                connection.settimeout(60)
                connection.recv(65_536)
                connection.sendall(head)
                while True:
                    connection.sendall(piece)
                    hostile.sent += len(piece)

        thread = Thread(target=serve)
        thread.start()
        hostile.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield hostile
        finally:
            thread.join()


def test_a_line_without_end_is_refused() -> None:
    with endless(b'{"record_id": "' + b"x" * (1 << 20)) as hostile:
        done = CliRunner().invoke(auditord, ["records", "--url", hostile.url, "--output", "ndjson"])
    assert f"a line of more than {LARGEST_ANSWER} bytes" in str(done.exception)
    assert hostile.sent < 2 * LARGEST_ANSWER


def test_a_run_whose_events_have_no_end_is_refused() -> None:
    with endless(b'{"said": "' + b"x" * (1 << 20)) as hostile:
        done = CliRunner().invoke(auditord, ["trigger", "slurm", "--url", hostile.url])
    assert (done.exit_code, "a line of more than" in str(done.exception)) == (1, True)
    assert hostile.sent < 2 * LARGEST_ANSWER


@pytest.mark.parametrize("words", [("records",), ("top", "groups")])
def test_a_description_without_end_is_refused(words: tuple[str, ...]) -> None:
    with endless(LINE * 1_000) as hostile:
        done = CliRunner().invoke(auditord, [*words, "--url", hostile.url])
    assert (done.exit_code, "/openapi.json has no end" in str(done.exception)) == (1, True)
    assert hostile.sent < LARGEST_ANSWER


def test_a_server_that_cannot_name_its_labels_now_is_not_asked_for_sums_by_others() -> None:
    asked = list[str]()

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(503)

    with HTTPServer(("127.0.0.1", 0), Busy) as busy:
        thread = Thread(target=busy.serve_forever, args=(0.01,))
        thread.start()
        done = CliRunner().invoke(auditord, ["top", "groups", "--url", f"http://127.0.0.1:{busy.server_port}"])
        busy.shutdown()
        thread.join()
    assert (done.exit_code, set(asked)) == (1, {"/openapi.json"})


@pytest.mark.parametrize("output", ["json", "ndjson", "csv"])
def test_more_records_than_were_asked_for_are_refused(output: str) -> None:
    with endless(LINE * 1_000) as hostile:
        done = CliRunner().invoke(auditord, ["records", "--url", hostile.url, "--limit", "3", "--output", output])
    assert (done.exit_code, "more than the 3 records that were asked for" in str(done.exception)) == (1, True)


@pytest.mark.parametrize("status", [b"200 OK", b"403 Forbidden", b"500 Internal Server Error"])
@pytest.mark.parametrize("command", [("status",), ("records", "--id", "a"), ("quarantine", "list")])
def test_an_answer_that_is_read_whole_has_an_end(command: Sequence[str], status: bytes) -> None:
    with endless(b"x" * (1 << 20), HEAD.replace(b"200 OK", status)) as hostile:
        done = CliRunner().invoke(auditord, [*command, "--url", hostile.url])
    assert re.search(r"(the answer has|a line of) more than \d+ bytes|has no end", f"{done.exception}{done.output}")
    assert hostile.sent < 2 * LARGEST_ANSWER


def test_a_line_that_is_not_a_record_is_called_so() -> None:
    with endless(b"\n") as hostile:
        done = CliRunner().invoke(auditord, ["records", "--url", hostile.url, "--output", "ndjson"])
    assert "the server sends a line that is not a record: " in str(done.exception)
