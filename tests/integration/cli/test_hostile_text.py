"""Ids, names and reasons that were made to act on the terminal, or in the spreadsheet, of whoever looks at them."""

import csv
import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from auditord_hookspecs import Component, Record
from tests.integration.cli.test_amending import CommandLine, without_daemon

EVIL: Final = "a\x1b]0;owned\x07\x9b31m\u202egnp\r\nb - everything is fine"
EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def command_line(tmp_path: Path) -> Iterator[CommandLine]:
    meta: dict[str, tuple[str, ...]] = {"site_id": ("=HYPERLINK(0)",), "user_id": (EVIL,), "group_id": ("-1+1",)}
    with without_daemon(tmp_path) as host:
        host.put(Record(EVIL, EPOCH, (Component("Cores", 8, ()),), EPOCH, meta))
        yield host


def on_a_terminal(command_line: CommandLine, *words: str) -> str:
    """The output of a command on a terminal, errors included; without the terminal's own line ends."""
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "auditord", "--config", str(command_line.config), *words],
        stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )  # fmt: skip
    os.close(slave)
    printed = bytearray()
    try:
        while piece := os.read(master, 65_536):
            printed += piece
    except OSError:  # the last one has closed the other end
        pass
    finally:
        os.close(master)
        child.wait()
    return printed.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    "words",
    [
        ("records",),
        *(("records", "--output", form) for form in ("json", "ndjson", "csv")),
        ("records", "history", EVIL),
        ("records", "history", EVIL, "--output", "json"),
        ("records", "delete", EVIL, "--reason", "r", "--dry-run"),
        ("records", "close", EVIL, "--stop-time", "2026-01-02", "--reason", "r", "--dry-run"),
        ("records", "delete", EVIL + "x", "--reason", "r", "--dry-run"),
    ],
)
def test_nothing_acts_on_a_terminal(command_line: CommandLine, words: tuple[str, ...]) -> None:
    if "history" in words:
        done = command_line.run("correct", EVIL, "--component", "Cores=9", "--reason", EVIL, "--by", EVIL, "--yes")
        assert done.exit_code == 0
    printed = on_a_terminal(command_line, *words)
    for bold in ("\x1b[1m", "\x1b[0m"):  # of a table's heading
        printed = printed.replace(bold, "")
    assert "\\u001b" in printed
    assert [each for each in printed if not each.isprintable() and each != "\n"] == []
    assert not any(line.startswith("b - everything") for line in printed.splitlines())


def test_a_pipe_gets_the_records_as_they_are(command_line: CommandLine) -> None:
    assert command_line.ids() == [EVIL]
    done = command_line.run("--output", "csv", "--no-escape-formulas")
    [row] = csv.DictReader(io.StringIO(done.stdout_bytes.decode(), newline=""))
    assert (row["record_id"], row["site_id"], row["group_id"]) == (EVIL, "=HYPERLINK(0)", "-1+1")


def test_a_carriage_return_begins_no_line_of_csv(tmp_path: Path) -> None:
    site = "KIT\rmade-up-job"
    with without_daemon(tmp_path) as host:
        host.put(Record("job", EPOCH, (), EPOCH, {"site_id": (site,)}))
        [row] = csv.DictReader(io.StringIO(host.run("--output", "csv").stdout_bytes.decode(), newline=""))
    assert (row["record_id"], row["site_id"]) == ("job", site)


def test_no_cell_of_csv_is_a_formula(command_line: CommandLine) -> None:
    [row] = csv.DictReader(io.StringIO(command_line.run("--output", "csv").stdout, newline=""))
    assert (row["site_id"], row["group_id"], row["Cores"]) == ("'=HYPERLINK(0)", "'-1+1", "8")
