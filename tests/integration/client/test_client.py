"""Both clients against an auditord in another process and against AUDITOR's rules."""

import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from itertools import count

import pytest

from auditord.client import (
    Client,
    ConnectionFailed,
    RecordExists,
    Refused,
    ServerFailed,
    UnknownRecord,
    UnsupportedQuery,
)
from auditord.testing import make_record
from auditord.testing.records import EPOCH
from auditord_hookspecs import Record, RecordQuery
from auditord_hookspecs.query import AllOf, Comparison, IsOpen, MetaContains, Order, SortField, TimeCompares, TimeField
from tests.fake_auditor import MAX_BODY, FakeAuditor, Fault
from tests.integration.client.conftest import AnyClient

Connect = Callable[..., AnyClient]
HOUR = timedelta(hours=1)
numbers = count()


@pytest.fixture(params=["auditord", "auditor"])
def url(request: pytest.FixtureRequest) -> str:
    server = request.getfixturevalue(request.param)
    return server if isinstance(server, str) else server.url


@pytest.fixture
def site() -> str:
    """A site of this test alone, since tests share a server."""
    return f"site/{next(numbers)} é"


def of_site(site: str, *more: TimeCompares) -> RecordQuery:
    return RecordQuery(AllOf((MetaContains("site_id", site), *more)), Order(SortField.ID))


def records_of(site: str, size: int) -> list[Record]:
    return [make_record(f"{site}#{n:05}", start=EPOCH + n * HOUR, site_id=site) for n in range(size)]


def test_what_is_added_is_found(connect: Connect, url: str, site: str) -> None:
    client = connect(url)
    assert client.health()
    first, *others = records_of(site, 10)
    client.add(first)
    assert client.add_all(others) == 9
    assert client.records(of_site(site)) == [first, *others]
    since = TimeCompares(TimeField.START, Comparison.GTE, EPOCH + 7 * HOUR)
    assert client.records(of_site(site, since)) == others[-3:]
    assert client.get(first.record_id) == first
    assert first in client.records()


def test_what_is_not_there(connect: Connect, url: str, site: str) -> None:
    client = connect(url)
    assert client.get(f"nobody/{site}") is None
    assert client.records(of_site(site)) == []
    with pytest.raises(UnknownRecord):
        client.update(f"nobody/{site}", EPOCH)
    with pytest.raises(UnsupportedQuery):
        client.records(RecordQuery(IsOpen()))


def test_an_open_record_is_stopped(connect: Connect, url: str, site: str) -> None:
    client = connect(url)
    client.add(make_record(f"{site}%2F/1?", runtime=None, site_id=site))
    client.update(f"{site}%2F/1?", EPOCH + HOUR)
    assert client.get(f"{site}%2F/1?") == make_record(f"{site}%2F/1?", site_id=site)


def test_a_known_id_is_an_error_and_its_chunk_is_not_stored(connect: Connect, url: str, site: str) -> None:
    client = connect(url)
    records = records_of(site, 3)
    other = make_record(records[2].record_id, start=EPOCH - HOUR, site_id=site)
    client.add(other)
    with pytest.raises(RecordExists, match="RECORD_EXISTS"):
        client.add(records[2])
    with pytest.raises(RecordExists, match="the records 0 to 2; none of them is stored") as caught:
        client.add_all(records)
    assert (caught.value.first, caught.value.stop) == (0, 3)
    assert client.records(of_site(site)) == [other]


def test_a_bulk_is_split_below_auditors_limit(connect: Connect, auditor: FakeAuditor, site: str) -> None:
    records = records_of(site, 12_000)
    assert connect(auditor.url).add_all(iter(records)) == 12_000
    posts = [target for method, target in auditor.requests if method == "POST"]
    assert posts == ["/records", "/records"]
    assert connect(auditor.url).records(of_site(site)) == records


def test_a_record_that_auditor_does_not_take_is_refused(connect: Connect, auditor: FakeAuditor) -> None:
    huge = make_record(components={f"{n}{'x' * 200}": 1 for n in range(MAX_BODY // 200)})
    with pytest.raises(Refused, match="413 JSON payload") as caught:
        connect(auditor.url).add_all([huge])
    assert caught.value.status == 413


def test_auditors_warning_is_no_success(connect: Connect, auditor: FakeAuditor) -> None:
    client = connect(auditor.url)
    client.add(make_record("a"))
    auditor.ignore_exists = True
    with pytest.raises(RecordExists):
        client.add_all([make_record("a"), make_record("b")])
    assert set(auditor.records) == {"a"}


def test_a_server_error_is_no_success(connect: Connect, auditor: FakeAuditor) -> None:
    client = connect(auditor.url)
    auditor.fault = lambda _method, _target: Fault.ERROR
    with pytest.raises(ServerFailed, match=r"POST http://127.0.0.1:\d+/record was answered 500 UNEXPECTED_ERROR"):
        client.add(make_record())
    with pytest.raises(ServerFailed):
        client.add_all([make_record()])
    with pytest.raises(ServerFailed):
        client.update("a", EPOCH)
    with pytest.raises(ServerFailed):
        client.get("a")  # its listing fails as well: nobody knows whether there is one
    with pytest.raises(ServerFailed):
        client.records()
    assert not client.health()


def test_nobody_listens(connect: Connect) -> None:
    client = connect("http://127.0.0.1:9")
    assert not client.health()
    for call in (lambda: client.add(make_record()), client.records, lambda: client.get("a")):
        with pytest.raises(ConnectionFailed, match="cannot connect") as caught:
            call()
        assert not caught.value.sent


def test_memory_is_bounded_by_a_piece_of_the_answer(auditor: FakeAuditor) -> None:
    auditor.records.update((record.record_id, record) for record in records_of("s", 20_000))
    with Client(auditor.url).stream() as records:
        first = next(records)
        tracemalloc.start()
        try:
            assert sum(1 for _ in records) == 19_999
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert first.record_id == "s#00000"
    assert peak < 4_000_000  # the answer has 4.6 MB, the fake's own copies are made before


def test_a_stream_may_be_left_early(connect: Connect, auditord: str, site: str) -> None:
    client = connect(auditord)
    client.add_all(records_of(site, 3_000))
    with Client(auditord).stream(of_site(site)) as records:
        assert next(records).record_id == f"{site}#00000"
    assert client.health()
