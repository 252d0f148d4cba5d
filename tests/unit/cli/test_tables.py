"""Tables: within a terminal's width, and with whole words in a pipe."""

import io
import re
import sys

import pytest

from auditord.cli.doctor import Examined, print_findings
from auditord.cli.tables import Column, Table, new_table, print_table
from tests.terminal import on_terminal

PATH = "/var/lib/auditord/" + "x" * 130
SENTENCE = "a cell of many words " * 12


def in_pipe(table: Table) -> list[str]:
    out = io.StringIO()
    print_table(table, out)
    return out.getvalue().splitlines()


def test_in_a_pipe_a_long_cell_breaks_at_blanks_and_a_word_never() -> None:
    table = Table([Column("name"), Column("text"), Column("number", right=True)])
    table.add_row("one", SENTENCE, "7")
    table.add_row(PATH, "\x1b[31mred\n", "12")
    lines = in_pipe(table)
    assert lines[0].split() == ["name", "text", "number"]
    first = [line for line in lines if "a cell" in line or "words" in line]
    assert len(first) > 2
    assert all(len(line) <= 100 + 2 + 100 + 2 + 6 for line in lines if PATH not in line)
    assert " ".join(line.split(" 7")[0].replace("one", "", 1).strip() for line in first).split() == SENTENCE.split()
    assert PATH in "\n".join(lines)
    assert r"\u001b[31mred\n" in lines[-1]


def test_letters_that_are_two_columns_wide_keep_the_columns_in_line() -> None:
    table = new_table("user", "jobs")
    table.add_row("日本", "1")
    table.add_row("anne", "2")
    assert in_pipe(table) == ["user  jobs", "日本  1", "anne  2"]


SHOW = f"""
from auditord.cli.tables import Column, Table, print_table
table = Table([Column("name"), Column("text"), Column("last run", whole=True)])
table.add_row("x" * 60, {SENTENCE!r}, "5 min ago")
print_table(table)
"""


@pytest.mark.parametrize("columns", [40, 80])
def test_on_a_terminal_no_line_is_longer_than_it(columns: int) -> None:
    text = on_terminal([sys.executable, "-c", SHOW], columns=columns)[0]
    plain = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
    assert max(map(len, plain)) <= columns
    assert "5 min ago" in plain[1]
    assert text.startswith("\x1b[1m"), "the head is bold"


def test_findings_in_a_pipe_are_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([Examined("collectors.slurm", "failure", "program", SENTENCE, f"look at {PATH}")], show_all=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "failure: collectors.slurm, program"
    assert [line for line in lines if len(line) > 100] == [f"  {PATH}"]
    assert lines[-1].startswith("CRITICAL: 1 failure")
