"""Text from outside cannot act on a terminal, however it gets there."""

import io
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord_hookspecs.spreadsheets import no_formula
from auditord_hookspecs.terminal import escaped, escaped_lines, output, say, say_cells, say_error, say_lines, write

EVIL = "\x1b[2J\x9b31m\u202e\u2066\u200b\r\n\0x"
HARMLESS = r"\u001b[2J\u009b31m\u202e\u2066\u200b\r\n\u0000x"


def test_what_acts_is_shown() -> None:
    assert escaped(EVIL) == HARMLESS
    assert escaped("Jürgen 李 😀") == "Jürgen 李 😀"


@given(st.text())
def test_a_line_stays_a_line_of_printable_characters(text: str) -> None:
    assert escaped(text).isprintable()
    assert escaped_lines(text).replace("\n", "").replace("\t", "").isprintable()


@given(st.text())
def test_json_that_is_shown_is_the_same_json(text: str) -> None:
    shown = escaped_lines(json.dumps([text], ensure_ascii=False, indent=2))
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


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_text_is_no_formula(text: str) -> None:
    assert no_formula(text) == f"'{text}"


def test_numbers_and_names_stay() -> None:
    cells: list[str | int | float | None] = [-5, 1.5, None, "", "a=b", "alice"]
    assert [no_formula(cell) for cell in cells] == cells
