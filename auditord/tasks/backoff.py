"""Growing pauses after failures in a row.

stamina retries one call and sleeps by itself; these pauses never end a loop, can be interrupted (a sender that is to
drain), and are kept in the queue across restarts (``due_at`` of an entry).
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

FIRST: Final = timedelta(seconds=1)
LONGEST: Final = timedelta(minutes=1)


def wait_after(failures: int, random: Callable[[], float]) -> timedelta:
    """The pause after so many failures in a row.

    Doubles from :data:`FIRST` to :data:`LONGEST`; a random half of it is left out, so that those who failed together
    do not come back together.
    """
    full = min(FIRST * (1 << min(failures - 1, 16)), LONGEST)
    return full * (1 - random() / 2)


class Backoff:
    """A count of failures in a row; ``random`` gives a number from 0 to 1."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self.failures = 0

    def next(self) -> timedelta:
        """Count a failure, and return the pause after it."""
        self.failures += 1
        return wait_after(self.failures, self._random)

    def reset(self) -> None:
        """Begin to count anew."""
        self.failures = 0
