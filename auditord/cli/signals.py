"""Signals of the process: the first one ends the daemon in order, the second one at once."""

import logging
import signal
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

import anyio
from anyio import CancelScope

_log: Final = logging.getLogger(__name__)

_ECHO: Final = 0.5
"""Seconds in which the same signal is not taken for a second one: ``timeout`` and terminals send it to the process and
to its group."""


async def run_until_signalled(work: Callable[[anyio.Event], Awaitable[None]]) -> bool:
    """Run something that ends in order once the event that it is given is set; SIGTERM or SIGINT sets it.

    Returns:
        Whether it ended in order; False if a second signal has cancelled it.
    """
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_listen, stop, group.cancel_scope)
        await work(stop)
        group.cancel_scope.cancel()
        return True
    return False


async def _listen(stop: anyio.Event, everything: CancelScope) -> None:
    first = -inf
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            if anyio.current_time() - first < _ECHO:
                continue
            if stop.is_set():
                _log.warning("%s again: ending at once; what is queued stays queued", number.name)
                everything.cancel()
                return
            first = anyio.current_time()
            _log.info("%s: ending in order; once more ends at once", number.name)
            stop.set()
