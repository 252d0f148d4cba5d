"""The length of the periods that sacct is asked for: longer while its answers are small, shorter at a limit."""

from datetime import timedelta
from typing import Final

from auditord_hookspecs import CommandFailed, Window

LONGEST: Final = timedelta(days=32)
"""So seven years without a job are some ninety calls, and no answer is that of a whole year."""

_SHORTEST: Final = timedelta(seconds=1)
_FEW: Final = 1_000
_MANY: Final = 20_000
_AFTER_TIMEOUT: Final = 8
"""Each attempt that runs into the time limit takes minutes, so there must not be many."""

_CAREFUL: Final = 30
"""So many parts after a limit was met are no longer than the one that was not too long."""


class Pace:
    """Chooses the next period's length.

    Args:
        usual: the length to begin with.
    """

    def __init__(self, usual: timedelta) -> None:
        self._usual = usual
        self._longest = max(usual, LONGEST)
        self._careful = 0
        self.length = usual

    def went_well(self, rows: int) -> None:
        """Note how many rows the last answer had."""
        self._careful = max(self._careful - 1, 0)
        if rows <= _FEW and not self._careful:
            self.length = min(self.length * 2, self._longest)
        elif rows > _MANY and self.length > self._usual:
            self.length = max(self.length / 2, self._usual)

    def failed(self, window: Window, error: CommandFailed) -> None:
        """Take a shorter period next, which begins where this one did.

        Raises:
            CommandFailed: a shorter one would not help.
        """
        length, limited = window.stop - window.start, error.timed_out or error.printed_too_much
        if length > self._usual:  # we made it that long, and a slurmdbd may refuse long periods (MaxQueryTimeRange)
            self._longest = self._longest if limited else self._usual
            self.length = self._usual
        elif limited and length > _SHORTEST:
            self._careful = _CAREFUL
            self.length = _whole_seconds(length / (_AFTER_TIMEOUT if error.timed_out else 2))
        else:
            raise error


def _whole_seconds(length: timedelta) -> timedelta:
    """Slurm's times have no fractions."""
    return max(timedelta(seconds=length // _SHORTEST), _SHORTEST)
