"""The meaning of answers, whatever the status says, and records in bodies."""

from datetime import UTC, datetime

import msgspec
import pytest

from auditord.client import (
    AnsweredError,
    Client,
    ClientError,
    InvalidAnswer,
    RecordExists,
    Refused,
    ServerFailed,
    Tls,
    UnknownRecord,
    exchange,
)
from auditord.client.exchange import Server
from auditord.testing import make_record
from auditord_hookspecs import HttpAnswer
from auditord_hookspecs.wire import decode_records, decode_update, encode_record

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def answer(status: int, body: bytes = b"") -> HttpAnswer:
    return HttpAnswer("POST http://far/record", status, {}, body)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (answer(200), None),
        (answer(204), None),
        (answer(500, b"RECORD_EXISTS"), RecordExists),
        (answer(200, b"RECORD_EXISTS"), RecordExists),
        (answer(409, b"RECORD_EXISTS"), RecordExists),
        (answer(200, b'{"warning":"Record already exists"}'), RecordExists),
        (answer(500, b"UNEXPECTED_ERROR"), ServerFailed),
        (answer(503, b"later"), ServerFailed),
        (answer(400, b"Json deserialize error"), Refused),
        (answer(413), Refused),
        (answer(302), InvalidAnswer),
        (answer(200, b"<html>please log in</html>"), InvalidAnswer),
        (answer(200, b'{"ok":true}'), InvalidAnswer),
    ],
)
def test_adding(given: HttpAnswer, error: type[ClientError] | None) -> None:
    if error is None:
        exchange.check_added(given)
        return
    with pytest.raises(error):
        exchange.check_added(given)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (answer(404, b"no such record"), UnknownRecord),
        (answer(500), ServerFailed),
        (answer(200, b"hello"), InvalidAnswer),
    ],
)
def test_stopping(given: HttpAnswer, error: type[ClientError]) -> None:
    exchange.check_stopped(answer(200))
    with pytest.raises(error):
        exchange.check_stopped(given)


def test_reading_one() -> None:
    record = make_record()
    assert exchange.read_record(answer(200, encode_record(record))) == record
    assert exchange.read_record(answer(200, b"null")) is None
    assert exchange.read_record(answer(404)) is None
    for body in (b"", b"[]", b"{}", b"<html>"):
        with pytest.raises(InvalidAnswer):
            exchange.read_record(answer(200, body))


def test_a_stop_is_an_update_that_any_server_takes() -> None:
    update = decode_update(exchange.stop_update("a/b", NOON))
    assert (update.record_id, update.stop_time) == ("a/b", NOON)


def test_chunks_are_full_and_stay_below_the_limit() -> None:
    records = [make_record(f"r{number:04}", note="x" * (1 + number % 50)) for number in range(500)]
    large = make_record("large", components={f"key{number}" + "y" * 200: 1 for number in range(40)})
    records.insert(100, large)
    chunks = list(exchange.chunks(iter(records), 5_000))
    assert [record for chunk in chunks for record in decode_records(chunk.body)] == records
    assert [chunk.first for chunk in chunks] == [0, *(chunk.stop for chunk in chunks[:-1])]
    assert chunks[-1].stop == len(records)
    oversized = [chunk for chunk in chunks if len(chunk.body) > 5_000]
    assert [decode_records(chunk.body) for chunk in oversized] == [[large]]
    full = [len(chunk.body) for chunk in chunks if chunk not in oversized]
    assert sum(size > 4_700 for size in full) >= len(full) - 2  # the last one, and the one before the large record
    assert list(exchange.chunks([], 5_000)) == []


@pytest.mark.parametrize("url", ["far:8000", "ftp://far", "http://", "http://me:secret@far", "http://far?x=1", ""])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ClientError):
        Server(url)


def test_a_token_is_sent_and_never_shown() -> None:
    server = Server("https://far/prefix/", token="s3cret")  # noqa: S106 not a real one
    assert server.url == "https://far/prefix"
    assert server.options.headers["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(server) + repr(server.options)


def test_tls_files_that_cannot_be_read_are_named() -> None:
    with pytest.raises(ClientError, match=r"cannot use the TLS files /nowhere/ca\.pem"):
        Client("https://far", tls=Tls(ca="/nowhere/ca.pem"))  # type: ignore[arg-type] # as a user would write it


def test_statuses_are_kept() -> None:
    with pytest.raises(AnsweredError) as caught:
        exchange.check_status(answer(418, b"teapot"))
    assert (caught.value.status, "teapot" in str(caught.value)) == (418, True)
    assert msgspec.json.decode(exchange.stop_update("a", NOON))["components"] == []
