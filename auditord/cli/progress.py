"""Progress on standard error: a bar on a terminal, otherwise (only for imports) an occasional line."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from auditord_hookspecs.terminal import escape, say
from auditord_hookspecs.wording import counted

_BETWEEN_LINES: Final = 10.0


def progress_bar(*, among_lines: bool = False) -> Progress:
    """Return a progress bar that disappears at the end. Without a terminal, it is not shown.

    Args:
        among_lines: whether lines for programs are written to standard output meanwhile. If both go to the same
            terminal, the bar is not shown, so that the lines stay intact.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    shared = sys.stdout.isatty()  # otherwise rich would send redirected output to the terminal
    disabled = not console.is_terminal or (among_lines and shared)
    return Progress(*columns, console=console, transient=True, disable=disabled, redirect_stdout=shared)


class StepBar:
    """Shows the steps of a task on the terminal."""

    def __init__(self) -> None:
        self.shown = progress_bar()
        self._task = self.shown.add_task("")

    def note_progress(self, phase: str, done: int, total: int) -> None:
        self.shown.update(self._task, description=phase, completed=done, total=total)


class ImportProgress:
    """A context manager that shows rows, rate and remaining time on standard error."""

    def __init__(self, doing: str, clock: Callable[[], float] = time.monotonic, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._doing = doing
        self._clock = clock
        self._live = console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn(),
            console=console, disable=not self._live, redirect_stdout=sys.stdout.isatty(),
        )  # fmt: skip
        self._task = self._bar.add_task(doing, total=1.0, rate="")
        self._began = self._said = clock()
        self._rows = 0
        self._first: float | None = None
        self._fraction = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()
        if not self._live:
            self._say()

    def advance(self, rows: int, fraction: float) -> None:
        """Count rows, and set the completed fraction (0 to 1)."""
        if self._first is None:
            self._first = fraction  # the work of an earlier attempt must not count for the rate
        self._rows += rows
        self._fraction = fraction
        self._bar.update(self._task, completed=fraction, rate=f"{counted(self._rows, 'row')}, {self._rate():,.0f}/s")
        if not self._live and self._clock() - self._said >= _BETWEEN_LINES:
            self._say()

    def note(self, text: str) -> None:
        """Print a line beside the bar."""
        if self._live:
            self._bar.console.print(escape(text), markup=False, highlight=False)
        else:
            say(text, err=True)

    def _rate(self) -> float:
        return self._rows / max(self._clock() - self._began, 1e-3)

    def _say(self) -> None:
        self._said = self._clock()
        done, left = self._fraction - (self._first or 0.0), ""
        if done > 0 and self._fraction < 1:
            left = f", about {(self._clock() - self._began) * (1 - self._fraction) / done:.0f} s left"
        line = f"{self._doing}: {counted(self._rows, 'row')}, {self._fraction:.1%}, {self._rate():,.0f}/s{left}"
        say(line, err=True)
