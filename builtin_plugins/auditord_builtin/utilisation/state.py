"""The plugin's state: the reports that were written, and the recipients who got them. It is saved after each step.

A mail is recorded right after the server accepted it. If the daemon is killed before that, the mail is sent again, with
the same Message-ID. The metrics show the same state.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

import msgspec
from prometheus_client import Counter, Gauge
from prometheus_client.registry import Collector

from auditord_builtin.utilisation.periods import Period, PeriodKind, due, parse_period
from auditord_hookspecs import Column, PanelContext, PanelPart, PluginContext, Table

MOST_TRIES: Final = 5
"""The maximum number of attempts for a recipient whom the server refuses."""
BETWEEN_TRIES: Final = timedelta(days=1)

MAILS: Final = Counter(
    "auditord_utilisation_mails",
    "Mails with reports by result: sent, refused (the recipient, permanently) or failed (to be retried).",
    ("task", "outcome"),
    registry=None,
)
REPORTED: Final = Gauge(
    "auditord_utilisation_reported_until_timestamp_seconds",
    "Jobs that stopped before this time have been reported.",
    ("task",),
    registry=None,
)
INSTRUMENTS: Final[Sequence[Collector]] = (MAILS, REPORTED)


class Series(Enum):
    """The two series of reports. Each has its own state."""

    REPORTS = "reports"
    USERS = "users"


class _Refusal(msgspec.Struct):
    tries: int
    at: datetime
    reason: str


class _Progress(msgspec.Struct):
    written: bool = False
    served: list[str] = []
    refused: dict[str, _Refusal] = {}


class _Reported(msgspec.Struct):
    """The state of a series: all periods up to ``reported_until`` are done, except the ``open`` ones.

    ``waiting_since`` is the time since when reports wait for records; None if all that are due were made.
    """

    reported_until: datetime | None = None
    waiting_since: datetime | None = None
    open: dict[str, _Progress] = {}


class ReportedState:
    """The stored state of an instance, during a run."""

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        stored: Mapping[str, Any] = context.state or {}  # Any: JSON of our own
        self._series = {series: msgspec.convert(stored.get(series.value, {}), _Reported) for series in Series}
        self._show()

    def pending(self, series: Series, kind: PeriodKind, settle: timedelta) -> Sequence[Period]:
        """Return the periods to report, or to send again to some recipients, the oldest first."""
        reported = self._series[series]
        found = {name: parse_period(name) for name in reported.open}
        found |= {period.name: period for period in due(kind, reported.reported_until, self._context.now() - settle)}
        return sorted(found.values(), key=lambda period: (period.stop, period.start))

    def is_new(self, series: Series) -> bool:
        """Return True if nothing was ever reported."""
        return self._series[series].reported_until is None

    def is_reported(self, series: Series, period: Period) -> bool:
        """Return True if the period was reported, perhaps not to all recipients."""
        until = self._series[series].reported_until
        return until is not None and period.stop <= until

    def waiting_since(self, series: Series) -> datetime:
        """Return the time since when reports wait for records: now, if none has waited."""
        since, now = self._series[series].waiting_since, self._context.now()
        return now if since is None else min(since, now)  # the clock may have been ahead

    async def note_waiting(self, series: Series) -> None:
        await self._wait_since(series, self.waiting_since(series))

    async def end_waiting(self, series: Series, kind: PeriodKind, settle: timedelta) -> None:
        """Record that no report waits for records, if all that are due were made."""
        if all(self.is_reported(series, period) for period in self.pending(series, kind, settle)):
            await self._wait_since(series, None)

    def is_waiting(self, series: Series, period: Period) -> bool:
        """Return True if the period was reported, and no refused recipient is due for a retry."""
        retry = any(map(self._is_due, self._progress(series, period).refused.values()))
        return self.is_reported(series, period) and not retry

    def is_written(self, series: Series, period: Period) -> bool:
        """Return True if the period's file was written."""
        return self._progress(series, period).written

    def list_due(self, series: Series, period: Period, recipients: Collection[str]) -> Sequence[str]:
        """Return the recipients that should get a mail now."""
        progress = self._progress(series, period)
        waiting = {each for each, refusal in progress.refused.items() if not self._is_due(refusal)}
        return [each for each in recipients if each not in {*progress.served, *waiting}]

    async def note_written(self, series: Series, period: Period) -> None:
        self._open_progress(series, period).written = True
        await self._save()

    async def note_sent(self, series: Series, period: Period, recipient: str) -> None:
        """Record that the server accepted the mail."""
        progress = self._open_progress(series, period)
        progress.served.append(recipient)
        progress.refused.pop(recipient, None)
        await self._save()

    async def note_refused(self, series: Series, period: Period, recipient: str, reason: str) -> int:
        """Record that the server refused the recipient, and return the number of refusals."""
        progress = self._open_progress(series, period)
        tries = progress.refused[recipient].tries + 1 if recipient in progress.refused else 1
        progress.refused[recipient] = _Refusal(tries, self._context.now(), reason)
        if tries >= MOST_TRIES:
            progress.served.append(recipient)  # give up
            del progress.refused[recipient]
        await self._save()
        return tries

    async def note_done(
        self, series: Series, period: Period, recipients: Collection[str], *, in_order: bool = True
    ) -> None:
        """Record that all recipients were served or refused. Refused recipients stay open.

        A period that is not reported yet stays open as a whole unless all earlier ones are done (``in_order``).
        """
        reported = self._series[series]
        if reported.reported_until is None or reported.reported_until < period.stop:
            if not in_order:
                return
            reported.reported_until = period.stop
        progress = reported.open.get(period.name)
        if progress is not None and progress.refused.keys().isdisjoint(recipients):
            del reported.open[period.name]
        await self._save()

    async def forget_before(self, series: Series, period: Period) -> None:
        """Drop the open recipients of periods before ``period``."""
        reported = self._series[series]
        kept = {name: each for name, each in reported.open.items() if parse_period(name).start >= period.start}
        if kept.keys() != reported.open.keys():
            reported.open = kept
            await self._save()

    async def _wait_since(self, series: Series, since: datetime | None) -> None:
        if self._series[series].waiting_since != since:
            self._series[series].waiting_since = since
            await self._save()

    def _is_due(self, refusal: _Refusal) -> bool:
        return self._context.now() >= refusal.at + BETWEEN_TRIES

    def _progress(self, series: Series, period: Period) -> _Progress:
        return self._series[series].open.get(period.name) or _Progress()

    def _open_progress(self, series: Series, period: Period) -> _Progress:
        return self._series[series].open.setdefault(period.name, _Progress())

    async def _save(self) -> None:
        state = {series.value: msgspec.to_builtins(reported) for series, reported in self._series.items()}
        await self._context.save_state(state)
        self._show()

    def _show(self) -> None:
        if (until := self._series[Series.REPORTS].reported_until) is not None:
            REPORTED.labels(self._context.instance).set(until.timestamp())


async def show_reports(context: PanelContext) -> Sequence[PanelPart]:
    """Return the panel: each series of reports, and the periods with open recipients."""
    state: Mapping[str, Any] = await context.state() or {}  # Any: JSON of the plugin's own
    if not state:
        return ["No report has been made yet."]
    rows: list[tuple[str, datetime | None, int]] = []
    for name, series in state.items():
        until = series.get("reported_until")
        open_periods = len(series.get("open", {}))
        rows.append((name, None if until is None else datetime.fromisoformat(until), open_periods))
    return [Table([Column("Series"), Column("Reported until"), Column("Open periods")], rows)]
