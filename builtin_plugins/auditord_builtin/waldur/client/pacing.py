"""The waits before asking again, and their end: all retries of a run share one budget of time."""

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

import anyio

FIRST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 60.0
ATTEMPTS: Final = 8
"""Of one request; the budget of time ends most series earlier."""

ATTEMPTS_AT_500: Final = 3
"""A server that answers 500 has looked at the request; it will hardly think otherwise the tenth time."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and chance; tests bring their own.

    Args:
        sleep: waits for seconds.
        monotonic: seconds of a clock that is never set.
        chance: a number from 0 to 1.
    """

    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    monotonic: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random


class Pacing:
    """The time that is left for attempts after the first.

    Args:
        budget: seconds, from :meth:`renew` on, within which a further attempt may begin.
        clock: time and chance.
    """

    def __init__(self, budget: float, clock: Clock) -> None:
        self._budget = budget
        self._clock = clock
        self._ends = clock.monotonic() + budget

    def renew(self) -> None:
        """Begin anew, for the next run or month."""
        self._ends = self._clock.monotonic() + self._budget

    async def pause(self, attempt: int, attempts: int, asked_for: float | None) -> bool:
        """Wait before the next attempt; False, without waiting, if there shall be none.

        Args:
            attempt: how many there were.
            attempts: how many there may be.
            asked_for: the seconds that the server asked for.
        """
        wait = _backoff(attempt, self._clock.chance()) if asked_for is None else asked_for
        if attempt >= attempts or self._clock.monotonic() + wait > self._ends:
            return False
        await self._clock.sleep(wait)
        return True


def _backoff(attempt: int, chance: float) -> float:
    """Twice as long each time, and half of it by chance: clients that failed together do not come back together."""
    longest: float = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempt - 1))
    return longest * (0.5 + chance / 2)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that an answer asks for: a number, or an instant by the server's own clock."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("Date", ""))
    except (TypeError, ValueError):  # either is missing, or one has no zone
        return None
    return max(0.0, wait.total_seconds())
