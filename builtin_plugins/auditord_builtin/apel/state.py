"""The reported state: for each site and month (or day) what APEL may hold, the last complete report, and what waits.

It is saved before and after each message. A row is saved as *there* before the first message with it goes out, so that
a crash never leaves a row at APEL that would not be withdrawn.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

import msgspec

from auditord_builtin.apel.messages import Message
from auditord_builtin.apel.months import Month
from auditord_builtin.apel.rows import SummaryRow
from auditord_hookspecs import AuditordError, PluginContext

VERSION: Final = 1


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """Rows or messages, which repeat themselves a lot, as compressed JSON in base64.

    Args:
        text: base64.
        size: the number of rows or messages.
    """

    text: str = ""
    size: int = 0


def pack(things: Sequence[SummaryRow | Message]) -> Packed:
    """Compress rows or messages."""
    return Packed(base64.b64encode(zlib.compress(msgspec.json.encode(things))).decode(), len(things))


def unpack_rows(packed: Packed) -> Sequence[SummaryRow]:
    """Read rows."""
    rows: tuple[SummaryRow, ...] = _unpack(packed, tuple[SummaryRow, ...])
    return rows


def unpack_message(packed: Packed) -> Message:
    """Read the only message."""
    messages: tuple[Message] = _unpack(packed, tuple[Message])
    return messages[0]


def _unpack(packed: Packed, kind: Any) -> Any:  # Any: a type, and a value of it
    return msgspec.json.decode(zlib.decompress(base64.b64decode(packed.text)), type=kind) if packed.size else ()


class Outbox(msgspec.Struct, frozen=True, kw_only=True):
    """A report of one month of one site that waits to be sent, complete in itself.

    Args:
        digest: of the summary that it reports.
        jobs: how many that summary has.
        rows: those that APEL holds once all is sent, without amounts.
        messages: those not yet acknowledged, in their order.
        ids: the broker's ids of those that were.
    """

    digest: str
    jobs: int
    rows: Packed
    messages: tuple[Packed, ...]
    ids: tuple[str, ...] = ()


class MonthState(msgspec.Struct, frozen=True, kw_only=True):
    """One month of one site.

    Args:
        there: the rows that APEL may hold with amounts, without their amounts.
        digest: of the last summary of which every message was acknowledged.
        jobs: how many it had.
        ids: the broker's ids of its messages.
        acknowledged: when the last of them was.
        stored: how many jobs the store had at the last look.
        reportable: how many of them the summary had.
        problems: the reasons why others could not be reported.
        outbox: the report that waits.
    """

    there: Packed = Packed()
    digest: str | None = None
    jobs: int = 0
    ids: tuple[str, ...] = ()
    acknowledged: datetime | None = None
    stored: int = 0
    reportable: int = 0
    problems: tuple[str, ...] = ()
    outbox: Outbox | None = None


class DayState(msgspec.Struct, frozen=True, kw_only=True):
    """The individual jobs of one site that ended on one day of UTC.

    Args:
        totals: digest of the store's sums when all its jobs were last sent (``figures`` in the saved state).
        jobs: how many were acknowledged.
        marks: of each of them, eight bytes; None once they are too old to be kept.
        stored: how many jobs the store had at the last look.
        reportable: how many of them could be reported.
        settings: a digest of the options with which some of them were left out; None if none were.
    """

    totals: str | None = msgspec.field(default=None, name="figures")
    jobs: int = 0
    marks: str | None = ""
    stored: int = 0
    reportable: int = 0
    settings: str | None = None


class SiteState(msgspec.Struct, frozen=True, kw_only=True):
    """One site.

    Args:
        looked: the last day (UTC) on which every month was looked at and reported.
        months: summaries, by month.
        days: individual jobs, by day.
    """

    looked: date | None = None
    months: Mapping[str, MonthState] = msgspec.field(default_factory=dict[str, MonthState])
    days: Mapping[str, DayState] = msgspec.field(default_factory=dict[str, DayState])

    def last_day(self, first: date) -> date | None:
        """The last day from this one on of which individual jobs were reported."""
        days = [date.fromisoformat(text) for text, day in self.days.items() if day.jobs]
        return max((day for day in days if day >= first), default=None)

    def last_month(self, first: date) -> Month | None:
        """The last month with this day, or behind it, that was reported as a summary, or in part."""
        sent = [text for text, each in self.months.items() if each.ids or (each.outbox and each.outbox.ids)]
        return max((month for month in map(Month.parse, sent) if month.next.start.date() > first), default=None)


class ReportedState(msgspec.Struct, frozen=True, kw_only=True):
    """All of the state.

    Args:
        version: of this layout.
        since: the ``publish_since`` of the first run, for the day on which the option is gone.
        sent: how many messages were ever published; numbers their labels.
        sites: by their names in GOCDB.
    """

    version: int = VERSION
    since: datetime | None = None
    sent: int = 0
    sites: Mapping[str, SiteState] = msgspec.field(default_factory=dict[str, SiteState])


def read_state(state: Any) -> ReportedState:  # Any: the JSON that was saved
    """The state as it was saved.

    Raises:
        AuditordError: it is that of a newer version.
    """
    if state is None:
        return ReportedState()
    if state.get("version") != VERSION:
        raise AuditordError("the state of this plugin was written by a newer auditord: update this one")
    return msgspec.convert(state, ReportedState)


class SavedState:
    """The state of one run, saved with each change.

    Args:
        context: of the run.
    """

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self.reported = read_state(context.state)

    def site(self, site: str) -> SiteState:
        """The state of a site."""
        return self.reported.sites.get(site, SiteState())

    def month(self, site: str, month: Month) -> MonthState:
        """The state of a month."""
        return self.site(site).months.get(str(month), MonthState())

    def day(self, site: str, day: date) -> DayState:
        """The state of a day."""
        return self.site(site).days.get(str(day), DayState())

    async def save_month(self, site: str, month: Month, state: MonthState, *, sent: int = 0) -> None:
        """Save a month, and that so many messages went out."""
        await self._save_site(site, sent, months={**self.site(site).months, str(month): state})

    async def save_days(self, site: str, days: Mapping[str, DayState], *, sent: int = 0) -> None:
        """Save all days of individual jobs, and that so many messages went out."""
        await self._save_site(site, sent, days=days)

    async def save_look(self, site: str, day: date) -> None:
        """Save that every month of a site was looked at."""
        await self._save_site(site, looked=day)

    async def save_since(self, since: datetime) -> None:
        """Save from when on jobs are reported."""
        await self._save(since=since)

    async def _save_site(self, site: str, sent: int = 0, **changes: Any) -> None:  # Any: fields
        changed = msgspec.structs.replace(self.site(site), **changes)
        await self._save(sites={**self.reported.sites, site: changed}, sent=self.reported.sent + sent)

    async def _save(self, **changes: Any) -> None:  # Any: fields
        reported = msgspec.structs.replace(self.reported, **changes)
        await self._context.save_state(msgspec.to_builtins(reported))
        self.reported = reported
