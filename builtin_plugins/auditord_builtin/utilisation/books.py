"""What has been reported and to whom: the plugin's state. Each note is durable before the next effect.

A mail is noted right after the server took it. If we are killed in between, it is sent once more, with the same
Message-ID.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

import msgspec

from auditord_builtin.utilisation.periods import Period, PeriodKind, due, parse_period
from auditord_hookspecs import PluginContext

MOST_TRIES: Final = 5
"""How often a mail is sent to a recipient whom the server refuses."""
BETWEEN_TRIES: Final = timedelta(days=1)


class Shelf(Enum):
    """What is kept apart."""

    REPORTS = "reports"
    USERS = "users"


class _Refusal(msgspec.Struct):
    tries: int
    at: datetime
    reason: str


class _Progress(msgspec.Struct):
    """How far the report on one period is."""

    written: bool = False
    served: list[str] = []
    refused: dict[str, _Refusal] = {}


class _Ledger(msgspec.Struct):
    """What stopped before ``reported_until`` is done, but for what is still open."""

    reported_until: datetime | None = None
    open: dict[str, _Progress] = {}


class Books:
    """The state, as it grows in a run.

    Args:
        context: of the plugin.
    """

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        kept: Mapping[str, Any] = context.state or {}  # Any: JSON of our own
        self._ledgers = {shelf: msgspec.convert(kept.get(shelf.value, {}), _Ledger) for shelf in Shelf}

    def pending(self, shelf: Shelf, kind: PeriodKind, settle: timedelta) -> Sequence[Period]:
        """What is to be reported, or to be sent again to somebody, the oldest first."""
        ledger = self._ledgers[shelf]
        found = {name: parse_period(name) for name in ledger.open}
        found |= {period.name: period for period in due(kind, ledger.reported_until, self._context.now() - settle)}
        return sorted(found.values(), key=lambda period: (period.stop, period.start))

    def is_waiting(self, shelf: Shelf, period: Period) -> bool:
        """Whether it has been reported, and whoever was refused is not to be tried again yet."""
        until = self._ledgers[shelf].reported_until
        refused = self._progress(shelf, period).refused.values()
        again = any(self._context.now() >= refusal.at + BETWEEN_TRIES for refusal in refused)
        return until is not None and period.stop <= until and not again

    def is_written(self, shelf: Shelf, period: Period) -> bool:
        """Whether its file has been written."""
        return self._progress(shelf, period).written

    def owed(self, shelf: Shelf, period: Period, recipients: Collection[str]) -> Sequence[str]:
        """Who is to get a mail now."""
        progress, now = self._progress(shelf, period), self._context.now()
        served = set(progress.served)
        return [
            each
            for each in recipients
            if each not in served
            and ((refusal := progress.refused.get(each)) is None or now >= refusal.at + BETWEEN_TRIES)
        ]

    async def note_written(self, shelf: Shelf, period: Period) -> None:
        """Its file has been written."""
        self._opened(shelf, period).written = True
        await self._save()

    async def note_sent(self, shelf: Shelf, period: Period, recipient: str) -> None:
        """A server took the mail."""
        progress = self._opened(shelf, period)
        progress.served.append(recipient)
        progress.refused.pop(recipient, None)
        await self._save()

    async def note_refused(self, shelf: Shelf, period: Period, recipient: str, reason: str) -> int:
        """The server refused the recipient; returns how often it did by now."""
        refused = self._opened(shelf, period).refused
        tries = refused[recipient].tries + 1 if recipient in refused else 1
        refused[recipient] = _Refusal(tries, self._context.now(), reason)
        if tries >= MOST_TRIES:
            self._opened(shelf, period).served.append(recipient)  # nothing is owed any more
            del refused[recipient]
        await self._save()
        return tries

    async def note_done(self, shelf: Shelf, period: Period, recipients: Collection[str]) -> None:
        """Everybody has been served or refused; what was refused stays open."""
        ledger = self._ledgers[shelf]
        if ledger.reported_until is None or ledger.reported_until < period.stop:
            ledger.reported_until = period.stop
        progress = ledger.open.get(period.name)
        if progress is not None and progress.refused.keys().isdisjoint(recipients):
            del ledger.open[period.name]
        await self._save()

    async def forget_before(self, shelf: Shelf, period: Period) -> None:
        """What is still open from earlier on does not matter any more."""
        ledger = self._ledgers[shelf]
        kept = {name: each for name, each in ledger.open.items() if parse_period(name).start >= period.start}
        if kept.keys() != ledger.open.keys():
            ledger.open = kept
            await self._save()

    def _progress(self, shelf: Shelf, period: Period) -> _Progress:
        return self._ledgers[shelf].open.get(period.name) or _Progress()

    def _opened(self, shelf: Shelf, period: Period) -> _Progress:
        return self._ledgers[shelf].open.setdefault(period.name, _Progress())

    async def _save(self) -> None:
        state = {shelf.value: msgspec.to_builtins(ledger) for shelf, ledger in self._ledgers.items()}
        await self._context.save_state(state)
