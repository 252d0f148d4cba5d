"""Progress on a terminal, and as lines where there is none."""

from io import StringIO

import pytest
from rich.console import Console

from auditord.cli.progress import ImportProgress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with ImportProgress("importing", clock, Console(file=StringIO(), force_terminal=False)) as progress:
        for second in range(1, 22):
            clock.now = 100.0 + second
            progress.advance(1_000, 0.5 + second / 100)
        progress.note("something [odd]")
    assert capsys.readouterr().err.splitlines() == [
        "importing: 10,000 rows, 60.0%, 1,000/s, about 44 s left",
        "importing: 20,000 rows, 70.0%, 1,000/s, about 32 s left",
        "something [odd]",
        "importing: 21,000 rows, 71.0%, 1,000/s, about 30 s left",
    ]


def test_a_bar_with_rate_and_remaining_time_on_a_terminal() -> None:
    screen = StringIO()
    clock = Clock()
    with ImportProgress("importing", clock, Console(file=screen, force_terminal=True, width=150)) as progress:
        clock.now = 110.0
        progress.advance(50_000, 0.25)
        progress.note("something [odd]")
        progress.advance(50_000, 0.5)
    text = screen.getvalue()
    assert "100,000 rows, 10,000/s" in text
    assert "50%" in text
    assert "left:" in text
    assert "something [odd]" in text
