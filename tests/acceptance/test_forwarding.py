"""A daemon that ships its records elsewhere, killed in the middle: the destination has each of them once."""

import threading
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

from auditord.client import Client, ClientError, RecordExists
from auditord.testing import make_record
from auditord_hookspecs import Record
from tests.acceptance.daemon_process import PATIENCE, wait_until
from tests.acceptance.numbers_daemon import job
from tests.acceptance.test_daemon import COUNT, Folder
from tests.fake_auditor import FakeAuditor, Fault, fake_auditor

EVERYTHING = {f"job-{number}": job(number) for number in range(COUNT)}
WELL = (None,) * 40
REPEATED = (None, Fault.RESET_AFTER, *WELL, Fault.UNAVAILABLE, *WELL, Fault.RESET_BEFORE, *WELL)


def forwarding(url: str, **options: object) -> dict[str, object]:
    """A daemon without an API and a store of its own."""
    senders = {"local": {"kind": "local", "enabled": False}, "far": {"kind": "remote", "url": url, **options}}
    return {"api": {"enabled": False}, "senders": senders}


def sends(folder: Folder, auditor: FakeAuditor, count: int) -> bool:
    return len(auditor.records) >= count or "Traceback" in folder.text()


def everything_is_there_once(folder: Folder, records: Callable[[], dict[str, Record]]) -> None:
    with folder.daemon() as process:
        wait_until(lambda: folder.checkpoint() == COUNT and folder.queued() == 0, folder.text)
        process.terminate()
        assert process.wait(PATIENCE) == 0, folder.text()
    assert records() == EVERYTHING
    assert folder.rows("spool.db", "SELECT count(*) FROM quarantine") == [(0,)]
    assert "Traceback" not in folder.text()


def test_killed_again_and_again_it_ships_each_job_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with fake_auditor() as auditor:
        faults = cycle(REPEATED)
        auditor.fault = lambda _method, _target: next(faults)
        folder.configure(**forwarding(auditor.url, batch_size=40))
        for target in (1, 300, 700, 1_200):
            with folder.daemon() as process:
                wait_until(partial(sends, folder, auditor, target), folder.text)
                process.kill()
        assert len(auditor.records) < COUNT
        auditor.fault = lambda _method, _target: None
        everything_is_there_once(folder, lambda: auditor.records)


def test_what_waited_while_the_destination_was_away_is_shipped_when_it_is_back(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "near")
    far = Folder(tmp_path / "far")
    for each in (folder, far):
        each.path.mkdir()
    far.configure(collectors={})
    with far.daemon() as process:
        url = far.url()
        process.kill()
    folder.configure(**forwarding(url))
    with folder.daemon():
        wait_until(lambda: folder.checkpoint() == COUNT, folder.text)
        wait_until(lambda: "cannot deliver" in folder.text(), folder.text)
    assert folder.queued() == COUNT
    far.configure(collectors={}, api={"listen": [url.removeprefix("http://")]})
    with far.daemon():
        far.url()
        everything_is_there_once(folder, lambda: stored(url))


def stored(url: str) -> dict[str, Record]:
    with Client(url).stream() as records:
        return {record.record_id: record for record in records}


@pytest.mark.parametrize("source", ["api", "all"])
def test_what_clients_write_is_shipped_once_however_often_the_daemon_is_killed(tmp_path: Path, source: str) -> None:
    folder = Folder(tmp_path)
    acknowledged: dict[str, Record] = {}
    with fake_auditor() as auditor:
        faults = cycle(REPEATED)
        auditor.fault = lambda _method, _target: next(faults)
        sender = {"kind": "remote", "url": auditor.url, "from": source, "open_records": True}
        folder.configure(senders={"far": sender}, collectors={})
        for begin in range(0, 400, 100):
            with folder.daemon() as process:
                post = threading.Thread(target=write, args=(folder.url(), begin, acknowledged))
                post.start()
                wait_until(partial(has_written, acknowledged, begin + 60), folder.text)
                process.kill()
                post.join()
        auditor.fault = lambda _method, _target: None
        with folder.daemon() as process:
            for record in acknowledged.values():
                again(folder.url(), record)
            wait_until(lambda: folder.queued() == 0 and outbox(folder) == 0, folder.text)
            wait_until(lambda: len(auditor.records) >= len(acknowledged), folder.text)
            process.terminate()
            assert process.wait(PATIENCE) == 0, folder.text()
            assert {name: auditor.records.get(name) for name in acknowledged} == acknowledged
    assert folder.rows("spool.db", "SELECT count(*) FROM quarantine") == [(0,)]
    assert folder.rows("spool.db", "SELECT count(*) FROM queue") == [(0,)]


def has_written(acknowledged: dict[str, Record], count: int) -> bool:
    return len(acknowledged) >= count


def write(url: str, begin: int, acknowledged: dict[str, Record]) -> None:
    """The work of a client: open records, then their stop times; until the daemon is gone."""
    client = Client(url, timeout=10, retry_waits=())
    try:
        for number in range(begin, begin + 100):
            name = f"drone-{number}"
            client.add(make_record(name, runtime=None))
            full = make_record(name)
            assert full.stop_time is not None
            client.update(name, full.stop_time)
            acknowledged[name] = full
    except ClientError:
        return


def again(url: str, record: Record) -> None:
    """Posted again, as clients do that heard no answer: nothing is doubled."""
    try:
        Client(url).add(record)
    except RecordExists as error:
        raise AssertionError(record.record_id) from error


def outbox(folder: Folder) -> int:
    behind = "SELECT count(*) FROM records WHERE position > (SELECT position FROM consumers WHERE name = 'senders')"
    (row,) = folder.rows("records.db", behind)
    return int(row[0])


def test_draining_takes_the_outbox_along(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with fake_auditor() as auditor:
        sender = {"kind": "remote", "url": auditor.url, "from": "api"}
        folder.configure(senders={"far": sender}, collectors={})
        with folder.daemon() as process:
            records = [make_record(f"r{number}") for number in range(500)]
            Client(folder.url()).add_all(records)
            process.terminate()
            assert process.wait(PATIENCE) == 0, folder.text()
        assert auditor.records == {record.record_id: record for record in records}
    assert outbox(folder) == 0
