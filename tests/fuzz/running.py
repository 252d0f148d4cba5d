"""The fuzz job: a parser is given inputs for a time, and raises only what it documents, and neither hangs nor grows."""

import gc
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, process_time
from typing import Final

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

CPU_SECONDS: Final = 5.0
"""For one input, of CPU: a loaded machine is no finding. Honest inputs take milliseconds."""

LARGEST_GROWTH: Final = 64 * 1024**2
"""Bytes of memory that a process may gain after its first rounds, however long it runs."""

ROUND: Final = 200
"""Inputs that Hypothesis makes at once; it remembers them until the round is over."""

_WARM: Final = 5
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Hang(AssertionError):
    """An input took too much CPU time."""


@dataclass(frozen=True)
class Parser:
    """A parser of text from outside.

    Args:
        name: of it.
        inputs: what it is given.
        parse: gives it one input; may raise what is documented and nothing else, and asserts what must be true.
        documented: what may be raised.
        few: how many inputs the short run has.
    """

    name: str
    inputs: st.SearchStrategy[bytes]
    parse: Callable[[bytes], None]
    documented: tuple[type[Exception], ...] = ()
    few: int = 200

    def take(self, text: bytes) -> None:
        """Give it one input."""
        with _limited():
            try:
                self.parse(text)
            except self.documented as error:
                require_text(error)


def require_text(error: Exception) -> None:
    """Fail on an error that says nothing."""
    assert str(error).strip(), repr(error)


@dataclass
class Measurements:
    """The measurements of a run.

    Args:
        examples: inputs.
        seconds: of the clock.
        cpu: seconds of CPU time.
        growth: bytes of memory after the first rounds, at most.
    """

    examples: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    growth: int = 0

    def __str__(self) -> str:
        time = f"{self.seconds:.0f} s ({self.cpu:.0f} s of CPU)"
        rate = f"{self.examples / self.seconds:.0f}/s, {self.examples / self.cpu:.0f} per second of CPU"
        return f"{self.examples} inputs in {time}: {rate}; memory +{self.growth / 2**20:.1f} MiB"


def smoke(parser: Parser) -> None:
    """Give a parser some inputs, always the same."""
    _round(parser, settings(max_examples=parser.few, derandomize=True, database=None))


def fuzz(parser: Parser, seconds: float) -> Measurements:
    """Give a parser new inputs for a time.

    Raises:
        AssertionError: it grows; also with whatever else is found.
    """
    figures, begun, spent, rounds, base = Measurements(), monotonic(), process_time(), 0, 0
    while figures.seconds < seconds:
        _round(parser, settings(max_examples=ROUND, database=None), int.from_bytes(os.urandom(8)))
        rounds += 1
        figures.examples += ROUND
        figures.seconds, figures.cpu = monotonic() - begun, process_time() - spent
        base = resident() if rounds <= _WARM else base
        figures.growth = max(figures.growth, resident() - base)
        assert figures.growth < LARGEST_GROWTH, f"{parser.name} grows: {figures}"
    return figures


def _round(parser: Parser, chosen: settings, start: int | None = None) -> None:
    relaxed = settings(
        chosen,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
    )

    @relaxed
    @given(parser.inputs)
    def give(text: bytes) -> None:
        parser.take(text)

    (give if start is None else seed(start)(give))()


def resident() -> int:
    """Bytes of memory that this process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


@contextmanager
def _limited() -> Generator[None, None, None]:
    """Raise :class:`Hang` inside what takes too much CPU time."""

    def stop(_signal: int, _frame: object) -> None:
        raise Hang(f"more than {CPU_SECONDS:g} s of CPU time for one input")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
