"""A thread that watches the process that all hook modules share, and names a module that harms it.

One part of a Python process cannot stop another part or limit its memory. So the watchdog only logs the culprit.
systemd (``WatchdogSec=``, ``MemoryMax=``, ``TasksMax=``) or the operator (``hooks.disabled``) must end it.
"""

import asyncio
import faulthandler
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread, active_count, get_ident
from time import monotonic
from traceback import walk_stack
from typing import Final, NamedTuple, TypeAlias

from auditord.hooks import HookModule

_log: Final = logging.getLogger(__name__)

BLOCKED_SECONDS: Final = 5.0
"""Seconds for which the event loop may be blocked before the culprit is logged."""

MOST_THREADS: Final = 64
"""Number of threads above which the hook module with most of them is logged, and again when the number doubles."""

MOST_GROWTH: Final = 512 << 20
"""Growth of the process in bytes after which it is logged."""

_TURN: Final = 0.5

_THREAD: Final = re.compile(r"(?:Current thread|Thread) (?P<number>0x[0-9a-f]+)")
_LINE: Final = re.compile(r'  File "(.*)", line (\S+) in (.*)')
_STATM: Final = Path("/proc/self/statm")


@contextmanager
def watch_process(
    modules: Sequence[HookModule], running: Callable[[], Sequence[str]], *, patience: float = BLOCKED_SECONDS
) -> Generator[None, None, None]:
    """Watch the process of the running event loop until the context exits.

    Args:
        modules: the hook modules that may be at fault.
        running: returns the names of the running instances; called from another thread.
        patience: seconds for which the loop may be blocked.
    """
    watchdog = Watchdog(Owners(modules), running, get_ident(), patience)
    stop = Event()
    thread = Thread(target=watchdog.run, args=(stop,), name="watchdog", daemon=True)
    beating = asyncio.create_task(watchdog.beat())
    thread.start()
    try:
        yield
    finally:
        stop.set()
        beating.cancel()
        thread.join()


class CodeLine(NamedTuple):
    """The current line in a frame of a thread, and its function."""

    file: str
    number: str
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number} in {self.function}"


Stack: TypeAlias = Sequence[CodeLine]
"""The frames of a thread, the innermost first."""


class Owners:
    """Finds the hook module whose code a thread runs."""

    def __init__(self, modules: Sequence[HookModule]) -> None:
        names = {module.module.partition(":")[0]: module for module in modules}
        shared = Counter(name.partition(".")[0] for name in names)
        alone = {name.partition(".")[0]: each for name, each in names.items() if shared[name.partition(".")[0]] == 1}
        places = [(place, module) for name, module in {**alone, **names}.items() for place in _places(name)]
        self._places = sorted(places, key=lambda each: len(each[0]), reverse=True)

    def owner(self, stack: Stack) -> tuple[HookModule, CodeLine] | None:
        """Return the hook module of the innermost frame that belongs to one, with that frame."""
        for line in stack:
            for place, module in self._places:
                if line.file.startswith(place):
                    return module, line
        return None


class Watchdog:
    """The work of the thread.

    Args:
        running: returns the names of the running instances.
        patience: seconds for which the loop may be blocked.
    """

    def __init__(
        self, owners: Owners, running: Callable[[], Sequence[str]], loop_thread: int, patience: float = BLOCKED_SECONDS
    ) -> None:
        self._owners = owners
        self._running = running
        self._loop_thread = loop_thread
        self._patience = patience
        self._last = monotonic()
        self._blocked_by: str | None = None
        self._most_threads = MOST_THREADS
        self._reported_threads = dict[str, int]()
        self._reported_memory = _resident()

    async def beat(self) -> None:
        """Note regularly, from the event loop, that the loop runs."""
        while True:
            self._last = monotonic()
            await asyncio.sleep(_TURN)

    def run(self, stop: Event) -> None:
        """Check the process regularly until the event is set."""
        while not stop.wait(_TURN):
            self.look_at_loop()
            self.look_at_threads()
            self.look_at_memory()

    def look_at_loop(self) -> None:
        """Log the code that blocks the event loop, once, and log when the loop runs again."""
        silent = monotonic() - self._last
        if silent > self._patience and self._blocked_by is None:
            stack = _stacks().get(self._loop_thread) or _stack_of(self._loop_thread)
            if (found := self._owners.owner(stack)) is not None:
                self._blocked_by = f"hook module {found[0]} ({found[1]})"
            else:
                self._blocked_by = f"auditord ({stack[0] if stack else 'unknown'})"
            _log.error(
                "%s has blocked the event loop for %.0f s: nothing is collected or served until it continues; such "
                "work belongs in a thread (anyio.to_thread)", self._blocked_by, silent,
            )  # fmt: skip
        elif silent <= self._patience and self._blocked_by is not None:
            _log.warning("the event loop runs again; it was blocked by %s", self._blocked_by)
            self._blocked_by = None

    def look_at_threads(self) -> None:
        """Log the hook module with most threads, if there are too many and more than at any time before."""
        count = active_count()
        if count <= self._most_threads:
            return
        self._most_threads = count
        owned = map(self._owners.owner, _stacks().values())
        ((name, _),) = Counter("no hook module" if each is None else str(each[0]) for each in owned).most_common(1)
        if count > self._reported_threads.get(name, MOST_THREADS):
            self._reported_threads[name] = 2 * count
            _log.warning(
                "%d threads are running, most of them in code of %s: check whether it leaves threads behind",
                count,
                name,
            )

    def look_at_memory(self) -> None:
        """Log growth of the process, with the instances that are running."""
        resident = _resident()
        if resident - self._reported_memory > MOST_GROWTH:
            names = ", ".join(self._running()) or "no instance"
            before, self._reported_memory = self._reported_memory, resident
            _log.warning(
                "the process has grown from %d to %d MiB; running: %s (MemoryMax= of the systemd unit limits it)",
                before >> 20, resident >> 20, names,
            )  # fmt: skip


def _places(name: str) -> Iterator[str]:
    """Yield the file of an imported module or the folders of a package, escaped as in a dump of stacks."""
    module = sys.modules.get(name)
    folders: Iterable[str] = getattr(module, "__path__", ())
    file: str | None = getattr(module, "__file__", None)
    for place in (*(f"{folder}{os.sep}" for folder in folders), file):
        if place is not None:
            yield _escape(place)


def _escape(path: str) -> str:
    """Return a path as faulthandler writes it."""
    return path.encode("ascii", "backslashreplace").decode()


def _stacks() -> Mapping[int, Stack]:
    """Return the stacks of the latest hundred threads.

    faulthandler reads all of them at once. The frames of ``sys._current_frames`` continue to run while they are read:
    taking them can stop CPython 3.11 (its issue 106883), and following their ``f_back`` has crashed it (99110).
    """
    with os.fdopen(os.memfd_create("stacks"), "w+", encoding="ascii") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        stacks = dict[int, list[CodeLine]]()
        stack = list[CodeLine]()
        for text in file:
            if (thread := _THREAD.match(text)) is not None:
                stack = stacks[int(thread["number"], 16)] = []
            elif (line := _LINE.match(text)) is not None:
                stack.append(CodeLine(*line.groups()))
        return stacks


def _stack_of(thread: int) -> Stack:
    """Return the stack of a thread that is not among the latest hundred and is likely to be blocked."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # documented in spite of its name
    frames = () if frame is None else walk_stack(frame)
    return [CodeLine(_escape(each.f_code.co_filename), str(number), each.f_code.co_name) for each, number in frames]


def _resident() -> int:
    """Return the resident memory in bytes; 0 without /proc."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
