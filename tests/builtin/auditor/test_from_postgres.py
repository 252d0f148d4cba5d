"""AUDITOR's database into stores of both sorts."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from auditord.spool.lock import own
from auditord.testing import make_record
from auditord.testing.records import EPOCH
from auditord_builtin.auditor import postgres
from auditord_builtin.auditor.conversion import Rows
from auditord_builtin.auditor.postgres import PostgresSource
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.wire import encode_record
from tests.auditor_database import insert, insert_raw, make_auditor, set_runtime
from tests.builtin.auditor.conftest import Target

HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)


def unusual_records() -> Iterator[Record]:
    """Records as a database of many years has them."""
    yield make_record("ü/\"\\'{}\t\n|\x01\x02\x1f", site_id='}{"record_id":"', vo="\\")
    yield make_record("open", runtime=None)
    yield make_record("negative", runtime=-HOUR)
    yield make_record("micros", start=EPOCH + MICROSECOND, runtime=timedelta(milliseconds=1500) + MICROSECOND)
    yield msgspec.structs.replace(make_record("bare"), components=())
    yield msgspec.structs.replace(make_record("empty meta"), meta={})
    yield msgspec.structs.replace(make_record("empty list"), meta={"k": (), "many": ("b", "a", "b")})
    scores = (Score("HEPscore23", 15.123456789), Score("tiny", 1e-300), Score("whole", 3.0))
    yield msgspec.structs.replace(
        make_record("scores"), components=(Component("Cores", 2**63 - 1, scores), Component("Cores", 0, ()))
    )


@pytest.fixture
def auditor(empty_postgres_url: str) -> str:
    make_auditor(empty_postgres_url, unusual_records())
    return empty_postgres_url


def test_every_record_is_taken_over_as_it_is(target: Target, auditor: str) -> None:
    done = target.run(auditor)
    assert done.exit_code == 0, done.output
    assert target.stored() == {record.record_id: record for record in unusual_records()}
    assert "8 are in the store, with equal times and content hashes\n8 records in the store" in done.stdout
    assert done.stdout.endswith("The import is complete.\n")
    assert "importing: 8 rows, 100.0%" in done.stderr
    assert target.positions() == []


def test_what_auditor_has_taken_in_meanwhile_comes_with_the_next_import(target: Target, auditor: str) -> None:
    target.run(auditor)
    insert(auditor, [make_record("late")])
    closed = make_record("open", runtime=2 * HOUR)
    target.add([closed])  # it has been closed in our store
    done = target.run(auditor)
    assert (done.exit_code, len(target.stored())) == (0, 9)
    assert target.stored()["open"] == closed


def test_rows_that_are_no_records_are_set_aside_alone(target: Target, auditor: str, tmp_path: Path) -> None:
    insert_raw(auditor, "old row", None, None)
    insert_raw(auditor, " ", None, "[]")
    insert_raw(auditor, "negative amount", "null", '[{"name":"Cores","amount":-1,"scores":[]}]')
    insert_raw(auditor, "odd meta", '{"a":"b"}', "null")
    done = target.run(auditor, "--problems", tmp_path / "problems")
    assert done.exit_code == 1
    assert target.stored()["old row"].components == ()
    assert target.stored()["old row"].meta is None
    assert len(target.stored()) == 9
    assert "3 are not valid records" in done.stdout
    assert "unreadable: row with id 10: Parsing ' ' failed" in done.stderr
    problems = [json.loads(line) for line in (tmp_path / "problems").read_text().splitlines()]
    assert [(each["finding"], each["where"]) for each in problems] == [
        ("unreadable", f"row with id {number}") for number in (10, 11, 12)
    ]
    assert problems[1]["source"].startswith('{"id":11,"record_id":"negative amount"')


def test_what_is_stored_otherwise_stays_is_listed_and_can_be_replaced(target: Target, auditor: str) -> None:
    other = make_record("bare", cores=7)
    later = make_record("empty meta", start=EPOCH + HOUR)
    target.add([other, later])
    done = target.run(auditor)
    assert done.exit_code == 1
    assert "different: row with id 5: bare: the stored record has other content or another stop time" in done.stderr
    assert "another run: row with id 6: empty meta: the store has a record of this id with another start" in done.stderr
    assert target.stored()["bare"] == other
    done = target.run(auditor, "--replace")
    assert done.exit_code == 1
    assert "1 have an id that belongs to another run" in done.stdout
    assert target.stored()["bare"].components == ()
    assert target.stored()["empty meta"] == later
    assert target.history("bare") == [encode_record(other)]


def test_a_runtime_that_does_not_follow_from_the_times_is_listed(target: Target, auditor: str, tmp_path: Path) -> None:
    set_runtime(auditor, "bare", 3_599)
    set_runtime(auditor, "empty meta", None)
    done = target.run(auditor, "--problems", tmp_path / "problems")
    assert done.exit_code == 1
    assert (
        "7 are in the store, with equal times and content hashes\n1 have another runtime in the source" in done.stdout
    )
    text = "bare: the source has a runtime of 3599 s, but from start to stop it is 3600 s; the latter counts"
    assert f"another runtime: row with id 5: {text}" in done.stderr
    (problem,) = [json.loads(line) for line in (tmp_path / "problems").read_text().splitlines()]
    assert problem["finding"] == "another runtime"
    assert '"runtime":3599' in problem["source"]
    assert '"runtime":3600' in problem["stored"]
    assert target.stored()["bare"].runtime == 3_600
    assert "1 have another runtime" in target.run(auditor, "--dry-run").stdout


def test_the_stop_time_counts_where_the_stored_record_has_forgotten_its_user(target: Target, auditor: str) -> None:
    named = make_record("named", user_id="alice", site_id="S")
    insert(auditor, [named])
    target.add([msgspec.structs.replace(named, meta={"site_id": ("S",)})])
    done = target.run(auditor)
    assert (done.exit_code, target.stored()["named"].meta) == (0, {"site_id": ("S",)})
    later = make_record("later", runtime=2 * HOUR, user_id="alice", site_id="S")
    insert(auditor, [later])
    target.add([make_record("later", site_id="S")])
    done = target.run(auditor)
    assert done.exit_code == 1, "a stop time that differs is a difference, whoever was forgotten"
    assert "different: row with id 10: later: " in done.stderr


def test_what_was_deleted_here_stays_away_and_is_reported(target: Target, auditor: str) -> None:
    bare = msgspec.structs.replace(make_record("bare"), components=())
    target.run(auditor)
    target.delete(bare)
    for words in ((), ("--dry-run",)):
        done = target.run(auditor, *words)
        assert done.exit_code == 1
        assert "bare" not in target.stored()
        assert "deleted: row with id 5: bare was deleted from the store" in done.stderr
        assert "1 were deleted from the store" in done.stdout
    assert target.run(auditor, "--replace").exit_code == 0
    assert target.stored()["bare"] == bare
    assert target.run(auditor).exit_code == 0, "it is there again"


def test_names_that_become_one_do_not_end_the_corrections(sqlite_target: Target, empty_postgres_url: str) -> None:
    twins = [make_record(name, cores=cores) for name, cores in (("a%2Fb", 2), ("a/b", 3), ("c", 4))]
    make_auditor(empty_postgres_url, twins)
    sqlite_target.add([make_record("a/b", cores=9), make_record("c", cores=9)])
    done = sqlite_target.run(empty_postgres_url, "--unquote", "--replace")
    assert done.exit_code == 1
    assert "different: row with id " in done.stderr
    assert sqlite_target.stored()["c"] == twins[2]


def test_a_dry_run_changes_nothing_and_says_what_would_be(target: Target, auditor: str) -> None:
    target.add([make_record("open", runtime=None), make_record("bare", cores=7)])
    insert_raw(auditor, " ", None, "[]")
    before = target.stored()
    done = target.run(auditor, "--dry-run")
    assert done.exit_code == 1
    assert target.stored() == before
    for words in ("9 rows in the source", "1 are already in the store", "6 would be imported", "1 differ", "1 are not"):
        assert words in done.stdout
    assert "is not in the store" not in done.stderr
    assert not (target.folder / "state").exists()


def test_a_dry_run_needs_no_store(sqlite_target: Target, auditor: str) -> None:
    done = sqlite_target.run(auditor, "--dry-run")
    assert (done.exit_code, "8 would be imported" in done.stdout) == (0, True), done.output
    assert list(sqlite_target.folder.iterdir()) == [sqlite_target.config]


def test_names_are_decoded_and_milliseconds_converted_and_shown(sqlite_target: Target, empty_postgres_url: str) -> None:
    old = [
        make_record(f"slurm%2F{n}", components={"TotalCPU": 3_600_000 - n}, site_id="site%2F1", cores=2)
        for n in range(4)
    ]
    new = [
        make_record(f"new-{n}", start=EPOCH + timedelta(days=40), components={"TotalCPU": 3_600}, cores=2)
        for n in range(4)
    ]
    make_auditor(empty_postgres_url, [*old, *new])
    seen = sqlite_target.run(empty_postgres_url, "--dry-run").stdout
    assert "TotalCPU   2026-01  4        4 (100.0%)            4 (100.0%)             looks like milliseconds" in seen
    assert "TotalCPU   2026-02  4        0 (0.0%)              0 (0.0%)               seconds" in seen
    options = ("--unquote", "--milliseconds", "TotalCPU", "--milliseconds-until", "2026-02-01T00:00:00Z")
    done = sqlite_target.run(empty_postgres_url, *options)
    assert done.exit_code == 0, done.output
    assert "4 (100.0%)            0 (0.0%)               converted from milliseconds" in done.stdout
    stored = sqlite_target.stored()
    assert {name: record.components[1].amount for name, record in stored.items()} == {
        **{f"slurm/{n}": 3_600 for n in range(4)},
        **{f"new-{n}": 3_600 for n in range(4)},
    }
    assert stored["slurm/0"].meta == {"site_id": ("site/1",)}


def test_ids_that_become_one_are_said(sqlite_target: Target, empty_postgres_url: str) -> None:
    make_auditor(empty_postgres_url, [make_record("a/b"), make_record("a%2Fb")])
    done = sqlite_target.run(empty_postgres_url, "--unquote")
    assert done.exit_code == 1
    assert "1 row shares the id of another row" in done.stderr


class Killed(BaseException):
    """Stands for the end of the process."""


class Reading:
    """Makes pages, and notes where each begins; dies after so many."""

    def __init__(self, make: Callable[[Sequence[bytes], float], Rows]) -> None:
        self._make = make
        self.first_rows: list[int] = []
        self.dies_after: int | None = None

    def __call__(self, texts: Sequence[bytes], fraction: float) -> Rows:
        if len(self.first_rows) == self.dies_after:
            raise Killed
        self.first_rows.append(json.loads(texts[0])["id"])
        return self._make(texts, fraction)


def test_an_import_goes_on_behind_the_last_page_that_is_stored(
    target: Target, empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = {f"job-{number}": make_record(f"job-{number}") for number in range(50)}
    make_auditor(empty_postgres_url, records.values())
    monkeypatch.setattr("auditord_builtin.auditor.conversion.PAGE_ROWS", 10)
    monkeypatch.setattr(postgres, "_FETCHED", 1)
    monkeypatch.setattr(postgres, "_OVERLAP", 5)
    reading = Reading(postgres.make_rows)
    monkeypatch.setattr(postgres, "make_rows", reading)
    reading.dies_after = 4
    with suppress(Killed):
        target.run(empty_postgres_url)
    assert reading.first_rows == [1, 11, 21, 31]
    (position,) = target.positions()
    reached = json.loads(position.read_text())
    assert reached["written"] is False
    assert 0 < int(reached["position"]) <= 40
    assert len(target.stored()) >= int(reached["position"])
    reading.first_rows.clear()
    reading.dies_after = None
    done = target.run(empty_postgres_url)
    assert done.exit_code == 0, done.output
    assert reading.first_rows[0] == int(reached["position"]) - 5 + 1
    assert target.stored() == records
    assert target.positions() == []


def test_another_daemon_of_the_same_sqlite_store_stops_first(sqlite_target: Target, auditor: str) -> None:
    with own(sqlite_target.folder / "state"):
        done = sqlite_target.run(auditor)
        assert done.exit_code == 1
        assert "stop that daemon first" in str(done.exception)
        assert "--dry-run, which works while the daemon runs" in str(done.exception)
        assert sqlite_target.run(auditor, "--dry-run").exit_code == 0


def test_beside_a_daemon_with_its_store_in_postgresql(tmp_path: Path, postgres_url: str, auditor: str) -> None:
    target = Target(tmp_path, postgres_url)
    with own(tmp_path / "state"):
        assert target.run(auditor).exit_code == 0
    with own(tmp_path / "state" / "imports"):
        assert "in use by process" in str(target.run(auditor).exception)


def test_a_source_that_does_not_answer_is_said(sqlite_target: Target) -> None:
    done = sqlite_target.run("postgresql://nobody@127.0.0.1:1/auditor")
    assert "AUDITOR's database auditor at 127.0.0.1:1 is not available: connection failed" in str(done.exception)


def test_a_database_without_auditors_table_is_said(sqlite_target: Target, empty_postgres_url: str) -> None:
    done = sqlite_target.run(empty_postgres_url)
    assert "has no table auditor_accounting: name the database that AUDITOR" in str(done.exception)


def test_the_password_is_shown_nowhere() -> None:
    source = PostgresSource("postgresql://me:geheim@db.example.org/auditor", None)
    assert source.name == "AUDITOR's database auditor at db.example.org"
