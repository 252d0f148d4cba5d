"""Text from outside cannot act on a terminal, however it gets there."""

import csv
import io
import json
import re
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord_hookspecs.spreadsheets import csv_line, no_formula
from auditord_hookspecs.terminal import escape, escape_lines, output, say, say_cells, say_error, say_lines, write

EVIL = "\x1b[2J\x9b31m\u202e\u2066\u200b\r\n\0x"
HARMLESS = r"\u001b[2J\u009b31m\u202e\u2066\u200b\r\n\u0000x"


def test_what_acts_is_shown() -> None:
    assert escape(EVIL) == HARMLESS
    assert escape("Jürgen 李 😀") == "Jürgen 李 😀"


@given(st.text())
def test_a_line_stays_a_line_of_printable_characters(text: str) -> None:
    assert escape(text).isprintable()
    assert escape_lines(text).replace("\n", "").replace("\t", "").isprintable()


@given(st.text())
def test_json_that_is_shown_is_the_same_json(text: str) -> None:
    shown = escape_lines(json.dumps([text], ensure_ascii=False, indent=2))
    assert json.loads(shown) == [text]


def test_a_line_and_cells_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"id {EVIL}")
    say_cells(["a\tb", "c\n"])
    say_lines("first\nsecond\x1b")
    say_error("no record 'a\nauditord: all is well'\n  details")
    out, err = capsys.readouterr()
    assert out == f"id {HARMLESS}\n" + "a\\tb\tc\\n\n" + "first\nsecond\\u001b\n"
    assert err == "auditord: no record 'a\n  auditord: all is well'\n  details\n"


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_formats_for_programs_are_verbatim_unless_people_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(EVIL)
    assert capsys.readouterr().out == EVIL
    screen = Tty()
    monkeypatch.setattr(sys, "stdout", screen)
    write("a\n")
    output().writelines([EVIL])
    assert screen.getvalue() == "a\n" + HARMLESS.replace(r"\n", "\n")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\tx", "\rx", "\nx", "\uff1d1"])
def test_text_is_no_formula(text: str) -> None:
    assert no_formula(text) == f"'{text}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("x;=1+1", "x;'=1+1"), ('x;"=1', "x;'\"=1"), ("a\t-1", "a\t'-1"), ("a\n@b", "a\n'@b"), ("\t=1", "'\t'=1")],
)
def test_no_part_of_a_text_is_a_formula(text: str, shown: str) -> None:
    assert no_formula(text) == shown


CELLS = st.lists(st.text(st.sampled_from("=+-@;,\t\r\n\" x'\uff1d")), min_size=1, max_size=4)


@given(CELLS)
def test_a_line_has_its_cells_for_readers_of_commas(cells: Sequence[str]) -> None:
    (read,) = csv.reader(io.StringIO(csv_line(cells), newline=""))
    assert read == cells


@given(CELLS, st.sampled_from(",;\t"))
def test_readers_of_any_separator_find_no_formula(cells: Sequence[str], separator: str) -> None:
    line = csv_line(["x", *map(no_formula, cells)])
    found = [cell for row in csv.reader(io.StringIO(line, newline=""), delimiter=separator) for cell in row]
    assert [cell for cell in found if re.match(r"\s*[=+\-@\uff1d]", cell)] == []


def test_cells_are_quoted_for_readers_that_take_several_separators() -> None:
    assert csv_line(["a;b", "c\td", "e", 1]) == '"a;b","c\td",e,1\n'


def test_numbers_and_names_stay() -> None:
    cells: list[str | int | float | None] = [-5, 1.5, None, "", "a=b", "alice"]
    assert [no_formula(cell) for cell in cells] == cells
