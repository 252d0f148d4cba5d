"""Single records are corrected, closed and deleted by command: through a running daemon, and where none runs."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import anyio
import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.testing.daemon import running_daemon
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.wire import encode_record

START = datetime(2026, 1, 1, tzinfo=UTC)
WHY = ("--reason", "the drone was lost", "--by", "alice")


def drone(name: str, *, days: int = 0, stop: datetime | None = None) -> Record:
    cores = Component("Cores", 8, (Score("HEPscore23", 11.5),))
    return Record(name, START + timedelta(days=days), (cores,), stop, {"site_id": ("S",), "user_id": ("tardis",)})


@dataclass(frozen=True)
class CommandLine:
    """Commands of a host, whether its daemon runs or not."""

    config: Path
    url: str | None

    def run(self, *words: str, **more: Any) -> Result:  # Any: click's
        return CliRunner().invoke(auditord, ["--config", str(self.config), "records", *words], **more)

    def acts(self, *words: str) -> Result:
        done = self.run(*words, *WHY, "--yes")
        assert done.exit_code == 0, (done.output, done.exception)
        return done

    def json(self, *words: str) -> Any:  # Any: JSON
        done = self.run(*words, "--output", "json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def ids(self, *words: str) -> list[str]:
        return [each["record_id"] for each in self.json(*words)]

    def put(self, *records: Record) -> None:
        if self.url is None:
            anyio.run(self._put, records)
            return
        for record in records:
            headers = {"Content-Type": "application/json"}
            with urlopen(Request(f"{self.url}/record", encode_record(record), headers)) as answer:  # noqa: S310 our own
                assert answer.status == 200

    async def _put(self, records: tuple[Record, ...]) -> None:
        url = f"sqlite://{self.config.parent / 'state' / 'records.db'}"
        async with open_store(url, counted_keys=()) as store:
            await store.add_all(records, Provenance(START), Duplicates.SAME_RUN, atomic=True)


@contextmanager
def without_daemon(folder: Path) -> Generator[CommandLine, None, None]:
    (folder / "state").mkdir()
    config = folder / "auditord.json"
    config.write_text(json.dumps({"state_dir": str(folder / "state")}))
    yield CommandLine(config, None)


@contextmanager
def with_daemon(folder: Path) -> Generator[CommandLine, None, None]:
    with running_daemon(folder, {}) as daemon:
        yield CommandLine(folder / "auditord.json", daemon.url)


@pytest.fixture(scope="module", params=["with a daemon", "without"])
def command_line(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    opened = with_daemon if request.param == "with a daemon" else without_daemon
    with opened(tmp_path_factory.mktemp("command_line")) as made:
        yield made


def test_a_correction_and_its_history(command_line: CommandLine) -> None:
    before = drone("wrong/1", stop=START + timedelta(hours=1))
    command_line.put(before)
    meta = ("--meta", "site_id=T", "--meta", "user_id=")
    edits = ("--stop-time", "2026-01-01T02:00:00Z", *meta, "--component", "Cores=4")
    tried = command_line.run("correct", "wrong/1", *edits, *WHY, "--dry-run")
    assert (tried.exit_code, tried.stdout.count('"Cores"')) == (0, 2)
    assert command_line.json("history", "wrong/1") == []
    assert "1 done" in command_line.acts("correct", "wrong/1", *edits).stdout
    assert "1 already up to date" in command_line.acts("correct", "wrong/1", *edits).stdout
    (record,) = command_line.json("--id", "wrong/1")
    assert (record["stop_time"], record["runtime"]) == ("2026-01-01T02:00:00Z", 7_200)
    assert record["meta"] == {"site_id": ["T"]}
    assert record["components"] == [{"name": "Cores", "amount": 4, "scores": [{"name": "HEPscore23", "value": 11.5}]}]
    (version,) = command_line.json("history", "wrong/1")
    assert version["record"] == json.loads(encode_record(before))
    assert (version["action"], version["changed_by"], version["reason"]) == ("correct", "user:alice", WHY[1])
    history = command_line.run("history", "wrong/1")
    assert "correct by user:alice: the drone was lost" in history.stdout


def test_a_whole_record_from_standard_input(command_line: CommandLine) -> None:
    command_line.put(drone("whole"))
    text = encode_record(drone("whole", days=1, stop=START + timedelta(days=2)))
    done = command_line.run("correct", "whole", "--from-file", "-", *WHY, "--yes", input=text)
    assert done.exit_code == 0, done.output
    assert command_line.json("--id", "whole") == [json.loads(text)]
    other = command_line.run(
        "correct", "whole", "--from-file", "-", *WHY, "--yes", input=encode_record(drone("another"))
    )
    assert "a record's id cannot be changed" in str(other.exception)


def test_a_deletion_asks_and_keeps_what_was_there(command_line: CommandLine) -> None:
    command_line.put(drone("gone", stop=START), drone("stays", stop=START))
    refused = command_line.run("delete", "gone", *WHY, input="n\n")
    assert (refused.exit_code, "Delete 1 record?" in refused.stderr) == (1, True)
    assert "done" in command_line.acts("delete", "gone").stdout
    assert command_line.json("--id", "gone") == []
    assert [version["action"] for version in command_line.json("history", "gone")] == ["delete"]
    assert "no record has the id 'gone'" in str(command_line.run("delete", "gone", *WHY, "--yes").exception)
    assert command_line.ids("--id", "stays") == ["stays"]
    never = command_line.run("history", "never")
    assert (never.exit_code, str(never.exception)) == (1, "no record has the id 'never'")


def test_open_records_are_found_by_age_and_closed_after_a_look(command_line: CommandLine) -> None:
    command_line.put(
        drone("lost-1"), drone("lost-2", days=1), Record("young", datetime.now(UTC), (), None, {"site_id": ("S",)})
    )
    chosen = ("--older-than", "7d", "--meta", "site_id=S")
    lost = {"lost-1", "lost-2"}
    assert lost <= set(command_line.ids("--open", *chosen))
    assert "young" not in command_line.ids("--open", "--older-than", "7d")
    assert command_line.ids("--open", "--older-than", "7d", "--meta", "site=S") == command_line.ids("--open", *chosen)
    assert command_line.ids("--meta", "site=T2") == command_line.ids("--meta", "meta:site=S") == []
    if command_line.url is not None:
        assert command_line.ids("--open", *chosen, "--url", command_line.url) == command_line.ids("--open", *chosen)
    preview = command_line.run("close", *chosen, "--runtime", "3h", *WHY, "--dry-run")
    assert all(name in preview.stdout for name in lost), preview.output
    assert lost <= set(command_line.ids("--open"))
    command_line.acts("close", *chosen, "--runtime", "3h")
    assert command_line.ids("--open", *chosen) == []
    assert "young" in command_line.ids("--open")
    (record,) = command_line.json("--id", "lost-2")
    assert (record["start_time"], record["stop_time"]) == ("2026-01-02T00:00:00Z", "2026-01-02T03:00:00Z")
    (version,) = command_line.json("history", "lost-2")
    assert (version["action"], version["record"]["stop_time"]) == ("close", None)
    assert "0 records" in command_line.run("close", *chosen, "--runtime", "3h", *WHY, "--yes").stderr


def test_what_makes_no_sense_is_left_and_said(command_line: CommandLine) -> None:
    command_line.put(drone("early"), drone("late", days=40), drone("stopped", stop=START))
    done = command_line.run("close", "early", "late", "stopped", "--stop-time", "2026-02-01", *WHY, "--yes")
    assert (done.exit_code, "1 done, 2 left unchanged" in done.stdout) == (1, True), done.output
    assert "late: it started later, at 2026-02-10T00:00:00Z" in done.stderr
    assert "stopped: it stopped at 2026-01-01T00:00:00Z" in done.stderr
    future = command_line.run("close", "late", "--runtime", "99999d", *WHY, "--yes")
    assert "late: it would stop in the future" in future.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("correct", "x", *WHY), "name the fields to change"),
        (("correct", "x", "--meta", "a=b"), "Missing option '--reason'"),
        (("delete", "x"), "Missing option '--reason'"),
        (("close", "x", *WHY), "either --stop-time or --runtime"),
        (("close", "--runtime", "1h", *WHY), "name records by their ids, or choose them"),
        (("close", "x", "--older-than", "1d", "--runtime", "1h", *WHY), "name records by their ids, or choose them"),
        (("close", "x", "--runtime", "soon", *WHY), "is not a duration"),
        (("--meta", "a=b", "delete", "x", *WHY), "write --meta after 'delete'"),
        (("--open", "--older-than", "9999999d"), "before the calendar begins"),
    ],
)
def test_wrong_usage(command_line: CommandLine, words: tuple[str, ...], message: str) -> None:
    done = command_line.run(*words)
    assert (done.exit_code, message in done.stderr) == (2, True), done.output


def test_an_empty_reason_changes_nothing(command_line: CommandLine) -> None:
    command_line.put(drone("kept", stop=START))
    done = command_line.run("delete", "kept", "--reason", " ", "--yes")
    assert done.exit_code == 1
    assert "a reason must have" in str(done.exception)
    assert command_line.ids("--id", "kept") == ["kept"]
