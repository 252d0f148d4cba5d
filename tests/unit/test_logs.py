"""Log lines in each form."""

import io
import json
import logging
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from auditord.errors import StoreUnavailable
from auditord.logs import (
    JournalHandler,
    JsonFormatter,
    OncePerMinute,
    TextFormatter,
    journal_datagram,
    priority,
    set_up,
)


def log_record(message: str = "hello", level: int = logging.INFO, **extra: str) -> logging.LogRecord:
    record = logging.LogRecord("auditord.task", level, "/src/file.py", 7, message, None, None, "collect")
    record.created = 1_772_366_400.123
    vars(record).update(extra)
    return record


def failed_record() -> logging.LogRecord:
    record = log_record("failed", logging.ERROR)
    try:
        int("why")
    except ValueError:
        record.exc_info = sys.exc_info()
    return record


def test_text_names_the_instance() -> None:
    assert TextFormatter().format(log_record(task="slurm")) == "2026-03-01T12:00:00.123Z INFO slurm: hello"
    assert TextFormatter().format(log_record()) == "2026-03-01T12:00:00.123Z INFO auditord.task: hello"


def test_a_job_name_cannot_forge_a_line() -> None:
    text = TextFormatter().format(log_record("job a\n2026 ERROR slurm: forged\x1b[0m ü"))
    assert text.endswith(r"job a\n2026 ERROR slurm: forged\u001b[0m ü")


def test_text_has_the_traceback() -> None:
    assert TextFormatter().format(failed_record()).endswith("base 10: 'why'")


def test_json_has_structured_fields() -> None:
    document = json.loads(JsonFormatter().format(log_record("a\nb", task="slurm", kind="slurm")))
    assert document == {
        "time": "2026-03-01T12:00:00.123Z",
        "level": "info",
        "logger": "auditord.task",
        "message": "a\nb",
        "task": "slurm",
        "kind": "slurm",
    }
    assert "ValueError: invalid literal" in json.loads(JsonFormatter().format(failed_record()))["traceback"]


@pytest.mark.parametrize(
    ("level", "number"), [("DEBUG", 7), ("INFO", 6), ("WARNING", 4), ("ERROR", 3), ("CRITICAL", 2)]
)
def test_priorities_are_those_of_syslog(level: str, number: int) -> None:
    assert priority(log_record(level=logging.getLevelNamesMapping()[level])) == number


def test_the_journal_gets_fields_and_lengths() -> None:
    datagram = journal_datagram(log_record("one\ntwo", task="slurm", kind="slurm"))
    assert b"MESSAGE\n" + struct.pack("<Q", 7) + b"one\ntwo\n" in datagram
    assert b"AUDITORD_TASK=slurm\n" in datagram
    assert b"PRIORITY=6\n" in datagram


def test_a_value_cannot_forge_a_field() -> None:
    datagram = journal_datagram(log_record(task="x\nPRIORITY=0"))
    assert b"AUDITORD_TASK\n" + struct.pack("<Q", 12) + b"x\nPRIORITY=0\n" in datagram


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "journal"))
        receiver.settimeout(10)
        yield receiver


def test_the_journal_hears(journal: socket.socket, tmp_path: Path) -> None:
    handler = JournalHandler(tmp_path / "journal", io.StringIO())
    handler.emit(log_record("hello", task="slurm"))
    handler.close()
    assert b"MESSAGE=hello\n" in journal.recv(65_536)


def test_without_a_journal_lines_have_priorities(tmp_path: Path) -> None:
    stream = io.StringIO()
    handler = JournalHandler(tmp_path / "nobody", stream)
    handler.emit(log_record("a\nb", logging.ERROR, task="slurm"))
    handler.close()
    assert stream.getvalue() == "<3>slurm: a\\nb\n"


@pytest.fixture
def clean_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level


@pytest.mark.usefixtures("clean_logging")
def test_levels_are_respected() -> None:
    stream = io.StringIO()
    set_up("warning", "text", stream)
    logging.getLogger("auditord.x").info("unheard")
    logging.getLogger("auditord.x").warning("heard")
    assert stream.getvalue().count("\n") == 1


def test_an_outage_has_one_line_per_minute_and_cause() -> None:
    moments = iter([0.0, 1.0, 2.0, 3.0, 61.0, 62.0])
    passes = OncePerMinute(lambda: next(moments)).filter

    def outage(cause: str, count: int) -> logging.LogRecord:
        record = log_record("the store is away (%s): %d records")
        record.args = (StoreUnavailable(cause), count)
        return record

    assert [passes(outage(cause, 1)) for cause in ("100 % full", "100 % full", "locked", "100 % full")] == [
        True,
        False,
        True,
        False,
    ]
    last = outage("100 % full", 7)
    assert passes(last)
    assert last.getMessage() == "the store is away (100 % full): 7 records (and 2 times more)"
    assert not passes(outage("100 % full", 1))


def test_what_is_no_outage_is_never_held_back() -> None:
    passes = OncePerMinute(lambda: 0.0).filter
    assert all(passes(log_record("refused a body")) for _ in range(3))
