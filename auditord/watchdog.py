"""A thread that looks after the process that all hook modules share, and names the one that harms it.

Python code in one process cannot be stopped, nor its memory limited, by another part of the same process. So this only
names the culprit while it is at work; what ends it is systemd (``WatchdogSec=``, ``MemoryMax=``, ``TasksMax=``) or the
operator (``hooks.disabled``).
"""

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread, get_ident
from time import monotonic
from types import FrameType
from typing import Final

from auditord.hooks import HookModule

_log: Final = logging.getLogger(__name__)

BLOCKED_SECONDS: Final = 5.0
"""Time for which the event loop may stand still before a culprit is named."""

MOST_THREADS: Final = 64
"""Threads of one hook module, or of none in particular, above which they are logged; then at each doubling."""

MOST_GROWTH: Final = 512 << 20
"""Bytes by which the process may grow before it is logged."""

_TURN: Final = 0.5
_STATM: Final = Path("/proc/self/statm")


@contextmanager
def watched_process(
    modules: Sequence[HookModule], running: Callable[[], Sequence[str]], *, patience: float = BLOCKED_SECONDS
) -> Generator[None, None, None]:
    """Watch the process of the running event loop until the context is left.

    Args:
        modules: the hook modules that may be at fault.
        running: the names of the instances that run; called from another thread.
        patience: seconds for which the loop may not turn.
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


class Owners:
    """Finds the module whose code a thread is in."""

    def __init__(self, modules: Sequence[HookModule]) -> None:
        names = {module.module.partition(":")[0]: module for module in modules}
        shared = Counter(name.partition(".")[0] for name in names)
        alone = {name.partition(".")[0]: each for name, each in names.items() if shared[name.partition(".")[0]] == 1}
        self._modules = {**alone, **names}

    def owner(self, frame: FrameType | None) -> tuple[HookModule, FrameType] | None:
        """The hook module whose code is innermost in a stack, and that frame."""
        while frame is not None:
            parts = str(frame.f_globals.get("__name__", "")).split(".")
            for length in range(len(parts), 0, -1):
                if (module := self._modules.get(".".join(parts[:length]))) is not None:
                    return module, frame
            frame = frame.f_back
        return None


class Watchdog:
    """The work of the thread.

    Args:
        running: the names of the instances that run.
        patience: seconds for which the loop may not turn.
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
        self._reported_threads = dict[str, int]()
        self._reported_memory = _resident()

    async def beat(self) -> None:
        """Say, for as long as the loop turns, that it does."""
        while True:
            self._last = monotonic()
            await asyncio.sleep(_TURN)

    def run(self, stop: Event) -> None:
        """Look after the process until the event is set."""
        while not stop.wait(_TURN):
            self.look_at_loop()
            self.look_at_threads()
            self.look_at_memory()

    def look_at_loop(self) -> None:
        """Name the code that blocks the event loop, once, and log when it turns again."""
        silent = monotonic() - self._last
        if silent > self._patience and self._blocked_by is None:
            self._blocked_by = self._culprit()
            _log.error(
                "%s has blocked the event loop for %.0f s: nothing is collected or served until it goes on; such work "
                "belongs into a thread (anyio.to_thread)", self._blocked_by, silent,
            )  # fmt: skip
        elif silent <= self._patience and self._blocked_by is not None:
            _log.warning("the event loop turns again; it was blocked by %s", self._blocked_by)
            self._blocked_by = None

    def look_at_threads(self) -> None:
        """Name a hook module that has very many threads."""
        frames = _frames()
        frames.pop(self._loop_thread, None)
        owned = map(self._owners.owner, frames.values())
        counts = Counter("no hook module" if each is None else str(each[0]) for each in owned)
        for name, count in counts.items():
            if count > self._reported_threads.get(name, MOST_THREADS):
                self._reported_threads[name] = 2 * count
                _log.warning("%d threads are at work in code of %s: does it leave threads behind?", count, name)

    def look_at_memory(self) -> None:
        """Name the instances that run while the process grows."""
        resident = _resident()
        if resident - self._reported_memory > MOST_GROWTH:
            names = ", ".join(self._running()) or "no instance"
            before, self._reported_memory = self._reported_memory, resident
            _log.warning(
                "the process has grown from %d to %d MiB; running: %s (the unit's MemoryMax= is a limit)",
                before >> 20, resident >> 20, names,
            )  # fmt: skip

    def _culprit(self) -> str:
        frame = _frames().get(self._loop_thread)
        found = self._owners.owner(frame)
        if found is not None:
            module, frame = found
            return f"hook module {module} ({_place(frame)})"
        return f"auditord ({'unknown' if frame is None else _place(frame)})"


def _frames() -> dict[int, FrameType]:
    """The innermost frame of each thread."""
    return sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # documented in spite of its name


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _resident() -> int:
    """Bytes; 0 where there is no /proc."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
